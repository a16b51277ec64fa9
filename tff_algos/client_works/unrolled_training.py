"""The gradient of a loss after local SGD with respect to the initial weights.

For J steps y <- y - eta * grad f(y; b_j) from w and a loss F at y_J, the gradient is

    dF/dw = (I - eta H_1) (I - eta H_2) ... (I - eta H_J) grad F(y_J),

where H_j is the Hessian of step j's loss. No Hessian is materialized: the vector
grad F(y_J) is propagated back through the steps, a <- a - eta H_j a, with one
Hessian-vector product per step. This takes memory for the weights before every
step, J times the model, and the activations of one step. With checkpointing, about
sqrt(J) weights are kept, and the steps between them are recomputed.

The model must be a deterministic function of weights and batch: random draws
(dropout) must be the same each time it is evaluated on them.
"""

from collections.abc import Callable
from typing import Literal

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works.passes import Passes
from tff_algos.finite import at_least_float32
from tff_algos.models import local_model
from tff_algos.models.local_model import LocalModel, Tensors, Weights
from tff_algos.optimizers import in_weights_dtype

Reduction = Literal["mean", "sum"]

MAX_TRAJECTORY_BYTES = 1 << 29

# Parallel iterations would hold the activations of several steps.
_ONE_STEP_AT_A_TIME = {"parallel_iterations": 1}


def hessian_vector_product(
    model: LocalModel, weights: Weights, batch: object, vector: Tensors
) -> Tensors:
    """Returns H v, where H is the Hessian of the batch's mean loss at `weights`.

    Args:
      model: A view of a functional model.
      weights: The weights to differentiate at.
      batch: One batch.
      vector: v, like the trainable weights.
    """
    with tf.GradientTape() as tape:
        tape.watch(weights.trainable)
        metrics = model.initial_metrics()
        gradients = model.loss_gradients(weights, metrics, batch).gradients
    products = tape.gradient(
        gradients,
        weights.trainable,
        output_gradients=vector,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    return local_model.dense(products)


@attrs.frozen
class BatchesGradient:
    """The result of evaluating several batches.

    Attributes:
      gradient: The gradient of their loss, like the trainable weights.
      non_trainable: The non-trainable weights after them.
      metrics: The metrics state after them.
      num_examples: The number of their examples, int64 [].
    """

    gradient: Tensors
    non_trainable: Tensors
    metrics: object
    num_examples: tf.Tensor


def gradient_of_batches(
    model: LocalModel,
    weights: Weights,
    metrics: object,
    passes: Passes,
    first: tf.Tensor,
    last: tf.Tensor,
    reduction: Reduction = "mean",
) -> BatchesGradient:
    """Returns the gradient of the loss of batches `first` to `last` - 1 at `weights`.

    Args:
      model: A view of the model.
      weights: The weights to differentiate at.
      metrics: The metrics state before the batches.
      passes: The batches.
      first: int32 [].
      last: int32 [], >= `first`; the gradient is zero if they are equal.
      reduction: Whether the loss is the mean or the sum over all examples.
    """

    def add_batch(index, total):
        here = attrs.evolve(weights, non_trainable=total.non_trainable)
        result = model.loss_gradients(here, total.metrics, passes.batch(index))
        gradient = tuple(
            t + at_least_float32(g) * tf.cast(result.num_examples, t.dtype)
            for t, g in zip(total.gradient, result.gradients, strict=True)
        )
        return index + 1, BatchesGradient(
            gradient,
            result.non_trainable,
            result.metrics,
            total.num_examples + result.num_examples,
        )

    # Sums over many examples overflow in half precision.
    zero = tuple(
        at_least_float32(tf.zeros_like(weight)) for weight in weights.trainable
    )
    _, total = tf.while_loop(
        lambda index, _: index < last,
        add_batch,
        (
            first,
            BatchesGradient(
                zero, weights.non_trainable, metrics, tf.constant(0, tf.int64)
            ),
        ),
        **_ONE_STEP_AT_A_TIME,
    )
    gradient = total.gradient
    if reduction == "mean":
        gradient = tuple(
            tf.math.divide_no_nan(g, tf.cast(total.num_examples, g.dtype))
            for g in gradient
        )
    narrow = tuple(
        tf.cast(g, weight.dtype)
        for g, weight in zip(gradient, weights.trainable, strict=True)
    )
    return attrs.evolve(total, gradient=narrow)


@attrs.frozen(eq=False)
class Steps:
    """SGD steps on indexed batches.

    Attributes:
      model: A view of the model, which must be functional to use `pull_back`.
      optimizer: Plain SGD.
      optimizer_state: The optimizer's state, with the learning rate of the round.
      passes: The batches.
      non_trainable: The non-trainable weights, constant.
    """

    model: LocalModel
    optimizer: tff.learning.optimizers.Optimizer
    optimizer_state: object
    passes: Passes
    non_trainable: Tensors

    def run(self, start, stop, trainable, metrics, keep):
        """Takes steps `start` to `stop` - 1.

        Returns:
          The weights and the metrics after them, and the weights before each step as
          `tf.TensorArray`s, empty unless `keep`.
        """
        arrays = tuple(
            tf.TensorArray(w.dtype, stop - start, element_shape=w.shape)
            for w in (trainable if keep else ())
        )

        def step(index, trainable, metrics, arrays):
            arrays = tuple(
                array.write(index - start, w)
                for array, w in zip(arrays, trainable, strict=False)
            )
            result = self.model.loss_gradients(
                Weights(trainable, self.non_trainable),
                metrics,
                self.passes.batch(index),
            )
            _, trainable = in_weights_dtype(self.optimizer).next(
                self.optimizer_state, trainable, result.gradients
            )
            return index + 1, tuple(trainable), result.metrics, arrays

        _, trainable, metrics, arrays = tf.while_loop(
            lambda index, *_: index < stop,
            step,
            (start, trainable, metrics, arrays),
            **_ONE_STEP_AT_A_TIME,
        )
        return trainable, metrics, arrays

    def pull_back(self, start, stop, trajectory, vector):
        """Propagates `vector` back through steps `stop` - 1 to `start`."""
        learning_rate = self.optimizer.get_hparams(self.optimizer_state)[
            tff.learning.optimizers.LEARNING_RATE_KEY
        ]

        def step(index, vector):
            trainable = tuple(array.read(index - start) for array in trajectory)
            product = hessian_vector_product(
                self.model,
                Weights(trainable, self.non_trainable),
                self.passes.batch(index),
                vector,
            )
            return index - 1, tuple(
                v - tf.cast(learning_rate, v.dtype) * p
                for v, p in zip(vector, product, strict=True)
            )

        _, vector = tf.while_loop(
            lambda index, _: index >= start,
            step,
            (stop - 1, vector),
            **_ONE_STEP_AT_A_TIME,
        )
        return vector


def _segment_length(num_steps, trainable, max_trajectory_bytes):
    """Returns the steps between checkpoints: all of them, or about sqrt(J)."""
    size = sum(w.shape.num_elements() * w.dtype.size for w in trainable)
    # In floating point, because an integer product of sizes could overflow.
    needed = tf.cast(num_steps, tf.float64) * float(size)
    root = tf.cast(tf.math.ceil(tf.sqrt(tf.cast(num_steps, tf.float64))), tf.int32)
    fits = needed <= float(max_trajectory_bytes)
    return tf.maximum(tf.where(fits, num_steps, root), 1)


def train(steps: Steps, num_steps: tf.Tensor, start: Tensors, metrics: object):
    """Takes `num_steps` steps from `start`; returns the weights and the metrics."""
    trainable, metrics, _ = steps.run(0, num_steps, start, metrics, keep=False)
    return trainable, metrics


def gradient_through_training(
    steps: Steps,
    num_steps: tf.Tensor,
    start: Tensors,
    metrics: object,
    final_gradient: Callable[[Tensors, object], BatchesGradient],
    max_trajectory_bytes: int = MAX_TRAJECTORY_BYTES,
) -> BatchesGradient:
    """Returns the gradient of a loss after training, with respect to `start`.

    Args:
      steps: The SGD steps.
      num_steps: J >= 0, int32 [].
      start: The weights w before the first step.
      metrics: The metrics state before it.
      final_gradient: Maps the weights and the metrics after training to the gradient
        of the final loss.
      max_trajectory_bytes: If the weights of all steps take more memory, only
        checkpoints are kept, and the steps between them are recomputed.

    Returns:
      The result of `final_gradient`, with the gradient propagated back to `start`.
    """
    length = _segment_length(num_steps, start, max_trajectory_bytes)
    last = tf.maximum(num_steps - 1, 0) // length * length
    trainable, metrics, checkpoints = _run_to_last_segment(
        steps, length, last, start, metrics
    )
    trainable, metrics, trajectory = steps.run(
        last, num_steps, trainable, metrics, keep=True
    )
    final = final_gradient(trainable, metrics)
    vector = steps.pull_back(last, num_steps, trajectory, final.gradient)

    def pull_segment_back(begin, vector):
        trainable = tuple(array.read(begin // length) for array in checkpoints)
        # The metrics counted these steps when they first ran.
        metrics = steps.model.initial_metrics()
        end = begin + length
        *_, trajectory = steps.run(begin, end, trainable, metrics, keep=True)
        return begin - length, steps.pull_back(begin, end, trajectory, vector)

    _, vector = tf.while_loop(
        lambda begin, _: begin >= 0,
        pull_segment_back,
        (last - length, vector),
        **_ONE_STEP_AT_A_TIME,
    )
    return attrs.evolve(final, gradient=vector)


def _run_to_last_segment(steps, length, last, start, metrics):
    """Runs all segments except the last; keeps the weights before each of them."""
    checkpoints = tuple(
        tf.TensorArray(
            w.dtype, last // length, element_shape=w.shape, clear_after_read=False
        )
        for w in start
    )

    def run_segment(begin, trainable, metrics, checkpoints):
        checkpoints = tuple(
            array.write(begin // length, w)
            for array, w in zip(checkpoints, trainable, strict=True)
        )
        trainable, metrics, _ = steps.run(
            begin, begin + length, trainable, metrics, keep=False
        )
        return begin + length, trainable, metrics, checkpoints

    _, trainable, metrics, checkpoints = tf.while_loop(
        lambda begin, *_: begin < last,
        run_segment,
        (tf.constant(0), start, metrics, checkpoints),
        **_ONE_STEP_AT_A_TIME,
    )
    return trainable, metrics, checkpoints
