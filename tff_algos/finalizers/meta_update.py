"""Server steps on the server's own data, after it has applied the clients' update.

The meta update of FedMeta: Yao et al., 2019, arXiv 1910.08234.
"""

import collections
from typing import Annotated, Any, NamedTuple

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import unrolled_training
from tff_algos.client_works.local_training import (
    check_learning_rate_decay,
    decay_learning_rate,
)
from tff_algos.client_works.passes import Passes
from tff_algos.client_works.unrolled_training import Reduction
from tff_algos.clients import attacks
from tff_algos.finite import all_finite, global_norm
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn
from tff_algos.optimizers import in_weights_dtype

# A step on all examples sums gradients over batches of this size, to bound the memory.
_CHUNK = 100
# The constants of a graph have to fit into a protocol buffer of 2 GB.
MAX_BYTES = 1 << 29


class MetaState(NamedTuple):
    """The round, int32 [], and the state of the optimizer."""

    round_num: Any
    optimizer: Any


@attrs.frozen
class MetaOutput:
    """The state, weights (`ModelWeights`) and measurements after a round's steps."""

    state: Any
    weights: Any
    measurements: Any


class TooManyBytesError(ValueError):
    """Examples are too large to be constants of the server's computation.

    Attributes:
      num_bytes: Their size, in the model's dtypes.
    """

    def __init__(self, num_bytes: int):
        super().__init__(
            f"Expected examples of {MAX_BYTES} bytes at most, found {num_bytes}."
        )
        self.num_bytes = num_bytes


@attrs.frozen
class MetaUpdate:
    """The meta update as two computations without placement.

    Attributes:
      initialize: `( -> S)`.
      next: `(<S, ModelWeights> -> <state=S, weights=ModelWeights, measurements=M>)`.
        M is `gradient_norm` (float32, the L2 norm of the last step's gradient) and
        `num_rejected_meta_updates` (int32, 0 or 1).
    """

    initialize: tff.Computation
    next: tff.Computation


@checked
def build_meta_update(
    model: ModelOrFn,
    examples: Any,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    meta_steps: Annotated[int, hparam(low=1)] = 1,
    meta_batch_size: Annotated[int | None, hparam(low=1)] = None,
    meta_reduction: Annotated[Reduction, hparam()] = "mean",
    meta_learning_rate_decay: Annotated[float, hparam(above=0, high=1)] = 1.0,
) -> MetaUpdate:
    """Builds the steps that a server takes on its own examples in every round.

    If the steps lead to weights or an optimizer state that are not finite, they are
    rejected: weights and optimizer state stay unchanged.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function that
        returns a `tff.learning.models.VariableModel`.
      examples: Arrays in the structure of the model's batches, with examples along the
        first axis; numbers, except bytes, are converted to the model's dtypes.
      optimizer: The optimizer of the steps; its state persists across rounds.
      meta_steps: Steps per round, >= 1.
      meta_batch_size: Examples per step; successive steps cycle through all examples.
        None for all examples in every step.
      meta_reduction: Whether a step's loss is the mean or the sum over its examples.
      meta_learning_rate_decay: The learning rate in round t is its initial value times
        this to the power t; in (0, 1].

    Returns:
      The two computations.

    Raises:
      HyperparameterError: If a number is out of range, or if the learning rate of
        `optimizer` cannot decay.
      TooManyBytesError: If there are more than 512 MiB of examples.
      ValueError: If there are no examples, arrays of different lengths, or arrays that
        the model does not take.
    """
    check_learning_rate_decay(
        meta_learning_rate_decay, optimizer, "meta_learning_rate_decay"
    )
    examples = _checked(examples, model)
    trainable_type = local_model.weights_type(model).trainable
    specs = tuple(tf.nest.flatten(tff.types.type_to_tf_tensor_specs(trainable_type)))

    @tff.tensorflow.computation
    def initialize():
        return MetaState(tf.constant(0), in_weights_dtype(optimizer).initialize(specs))

    @tff.tensorflow.computation(
        initialize.type_signature.result, local_model.weights_type(model)
    )
    def next_fn(state, model_weights):
        view = local_model.create(model)

        @tf.function
        def update(state, model_weights):
            passes = _as_passes(examples, meta_batch_size or _CHUNK)
            weights = local_model.flatten(model_weights)
            optimizer_state = decay_learning_rate(
                optimizer,
                state.optimizer,
                meta_learning_rate_decay,
                state.round_num,
            )
            trainable = weights.trainable
            for step in range(meta_steps):
                first, last = tf.constant(0), passes.num_batches
                if meta_batch_size is not None:
                    first = state.round_num * meta_steps + step
                    last = first + 1
                gradient = unrolled_training.gradient_of_batches(
                    view,
                    attrs.evolve(weights, trainable=trainable),
                    view.initial_metrics(),
                    passes,
                    first,
                    last,
                    meta_reduction,
                ).gradient
                optimizer_state, trainable = in_weights_dtype(optimizer).next(
                    optimizer_state, trainable, gradient
                )
            # Undo the decay of this round, so that decays do not accumulate.
            optimizer_state = optimizer.set_hparams(
                optimizer_state, optimizer.get_hparams(state.optimizer)
            )
            finite = all_finite((trainable, optimizer_state))
            optimizer_state, trainable = tf.nest.map_structure(
                lambda new, old: tf.where(finite, new, old),
                (optimizer_state, tuple(trainable)),
                (state.optimizer, weights.trainable),
            )
            measurements = collections.OrderedDict(
                gradient_norm=tf.cast(global_norm(gradient), tf.float32),
                num_rejected_meta_updates=tf.cast(tf.logical_not(finite), tf.int32),
            )
            return MetaOutput(
                MetaState(state.round_num + 1, optimizer_state),
                tff.learning.models.ModelWeights(
                    tf.nest.pack_sequence_as(model_weights.trainable, trainable),
                    model_weights.non_trainable,
                ),
                measurements,
            )

        return update(state, model_weights)

    return MetaUpdate(initialize, next_fn)


def _checked(examples: Any, model: ModelOrFn) -> Any:
    """Returns the arrays in the model's dtypes.

    Raises:
      TooManyBytesError: If they are too large.
      ValueError: If they are not examples of the model.
    """
    arrays = _as_inputs([np.asarray(each) for each in tf.nest.flatten(examples)], model)
    lengths = {array.shape[:1] for array in arrays}
    if len(lengths) != 1 or not all(array.ndim and len(array) for array in arrays):
        raise ValueError(
            "Expected examples to be arrays of one length >= 1, found shapes "
            f"{[array.shape for array in arrays]}."
        )
    size = sum(array.nbytes for array in arrays)
    if size > MAX_BYTES:
        raise TooManyBytesError(size)
    return tf.nest.pack_sequence_as(examples, arrays)


def _as_inputs(arrays: list[np.ndarray], model: ModelOrFn) -> list[np.ndarray]:
    batch_type = local_model.data_type(model).element
    batch = attacks.honest_batch(tff.types.type_to_tf_tensor_specs(batch_type))
    specs = tf.nest.flatten(batch)
    dtypes = [spec.dtype.as_numpy_dtype for spec in specs]
    fits = [
        # Bytes would be pixels that are not scaled.
        np.can_cast(array.dtype, dtype, "same_kind")
        and not (array.dtype == np.uint8 and spec.dtype.is_floating)
        and spec.shape[1:].is_compatible_with(array.shape[1:])
        for array, spec, dtype in zip(arrays, specs, dtypes, strict=False)
    ]
    if len(arrays) != len(specs) or not all(fits):
        shown = [f"{array.dtype}{list(array.shape)}" for array in arrays]
        raise ValueError(
            "Expected examples like the model's batches, "
            f"{tff.types.tensorflow_to_type(batch)}, found "
            f"{', '.join(shown)}."
        )
    return [
        array.astype(dtype, copy=False)
        for array, dtype in zip(arrays, dtypes, strict=True)
    ]


def _as_passes(examples: Any, meta_batch_size: int) -> Passes:
    """Returns one pass over constant examples."""
    tensors = tuple(
        tf.constant(array)[tf.newaxis] for array in tf.nest.flatten(examples)
    )
    first_batch = tuple(tensor[:, :meta_batch_size] for tensor in tensors)
    return Passes(tensors, first_batch, examples)
