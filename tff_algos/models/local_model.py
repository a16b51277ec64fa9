"""A common view of TFF's two kinds of models, for loops over a client's batches.

A loop carries `Weights` and a metrics state and calls `loss_gradients` for each batch.
Only this module distinguishes functional models from models with TensorFlow variables.
"""

import abc
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.autograph import convertible
from tff_algos.models import block_model
from tff_algos.models.changed_variables import changed_in_training

ModelOrFn = (
    tff.learning.models.FunctionalModel
    | Callable[[], tff.learning.models.VariableModel]
)
Tensors = tuple[tf.Tensor, ...]


@attrs.frozen
class Weights:
    """Flat tuples of a model's trainable and non-trainable weights."""

    trainable: Tensors
    non_trainable: Tensors


@attrs.frozen
class BatchResult:
    """The result of a training batch: the mean loss, its gradients, and new state."""

    loss: tf.Tensor  # []
    gradients: Tensors
    non_trainable: Tensors
    metrics: Any
    num_examples: tf.Tensor  # int64 []


@attrs.frozen
class Evaluation:
    """The result of an evaluation batch: its mean loss and new state."""

    loss: tf.Tensor  # []
    metrics: Any
    num_examples: tf.Tensor  # int64 []


@attrs.frozen(eq=False)
class Forward:
    """The forward pass of one batch.

    Attributes:
      loss: The mean loss, [].
      output: The model's output.
      weights: The weights that the model was evaluated at.
      batch: The batch.
      mode: The mode of a block model; else None.
      blocks: The inputs and the output of a block model's blocks; else None.
    """

    loss: tf.Tensor
    output: Any
    weights: Weights
    batch: Any
    mode: block_model.Mode | None = None
    blocks: block_model.ForwardPass | None = None


# Replaces a batch's mean loss as the function to minimize.
Objective = Callable[[Forward], tf.Tensor]


class LocalModel(abc.ABC):
    """A model inside one client's computation."""

    @abc.abstractmethod
    def initial_metrics(self) -> Any:
        """Returns the metrics state before any batch."""

    @abc.abstractmethod
    def loss_gradients(self, weights: Weights, metrics: Any, batch: Any) -> BatchResult:
        """Returns the gradient of the batch's mean loss at `weights`."""

    # Which non-trainable weights training changes: moving statistics of examples.
    statistics: tuple[bool, ...] = ()

    @abc.abstractmethod
    def evaluate(self, weights: Weights, metrics: Any, batch: Any) -> Evaluation:
        """Returns the batch's mean loss at `weights`, without dropout."""

    def uncounted(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context whose batches do not change metrics that the model stores.

        Metrics that a loop carries are not stored here: the caller drops them.
        """
        return contextlib.nullcontext()

    @abc.abstractmethod
    def unfinalized_metrics(self, metrics: Any, keep: tf.Tensor) -> Any:
        """Returns the client's unfinalized metrics; the initial ones unless `keep`."""


class _FunctionalLocalModel(LocalModel):
    """The view of a functional model; carries its metrics as a flat tuple.

    A model's own structure may contain lists, which `tf.data` converts to tensors.
    """

    def __init__(self, model: tff.learning.models.FunctionalModel):
        self._model = model
        # The model's other methods are of `tf.function`, which converts by itself.
        self._loss = convertible(model.loss)
        self._metrics_structure = model.initialize_metrics_state()

    def initial_metrics(self):
        return tuple(tf.nest.flatten(self._model.initialize_metrics_state()))

    def loss_gradients(
        self,
        weights: Weights,
        metrics: Any,
        batch: Any,
        objective: Objective | None = None,
        masks_of: Weights | None = None,
    ) -> BatchResult:
        """Returns the gradient of the batch's mean loss, or of an objective.

        Args:
          weights: The weights to differentiate at.
          metrics: The metrics state before the batch.
          batch: The batch.
          objective: The function to differentiate instead of the mean loss; the loss
            returned and counted in the metrics is still the mean loss.
          masks_of: The weights that, with the batch, determine a block model's dropout
            masks; by default `weights`. Ignored for other models.
        """
        with tf.GradientTape() as tape:
            tape.watch(weights.trainable)
            forward = self._forward(weights, batch, training=True, masks_of=masks_of)
            target = forward.loss if objective is None else objective(forward)
        gradients = tape.gradient(
            target,
            weights.trainable,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        metrics, num_examples = self._count(metrics, forward)
        return BatchResult(
            forward.loss,
            dense(gradients),
            self._new_statistics(forward),
            metrics,
            num_examples,
        )

    def evaluate(self, weights, metrics, batch):
        forward = self._forward(weights, batch, training=False)
        return Evaluation(forward.loss, *self._count(metrics, forward))

    def _forward(self, weights, batch, training, masks_of=None) -> Forward:
        del masks_of  # Only block models allow control of their dropout masks.
        x, y = _inputs_and_labels(batch)
        output = self._model.predict_on_batch(
            (weights.trainable, weights.non_trainable), x, training=training
        )
        loss = self._loss(output=output, label=y)
        return Forward(loss, output, weights, batch)

    def _new_statistics(self, forward: Forward) -> Tensors:
        return forward.weights.non_trainable

    def _count(self, metrics, forward: Forward):
        """Returns the metrics including the batch, and the batch size."""
        output = forward.output
        num_examples = tf.shape(tf.nest.flatten(output)[0], out_type=tf.int64)[0]
        metrics = self._model.update_metrics_state(
            tf.nest.pack_sequence_as(self._metrics_structure, metrics),
            labels=_inputs_and_labels(forward.batch)[1],
            batch_output=tff.learning.models.BatchOutput(
                loss=forward.loss, predictions=output, num_examples=num_examples
            ),
        )
        return tuple(tf.nest.flatten(metrics)), num_examples

    def unfinalized_metrics(self, metrics, keep):
        counted = tf.nest.map_structure(
            lambda value, initial: tf.where(keep, value, initial),
            metrics,
            self.initial_metrics(),
        )
        return tf.nest.pack_sequence_as(self._metrics_structure, counted)


class BlockLocalModel(_FunctionalLocalModel):
    """The view of a block model, with its moving statistics and dropout masks."""

    def __init__(self, model: block_model.BlockModel):
        super().__init__(model)
        self.statistics = statistics_of(model)

    def _forward(self, weights, batch, training, masks_of=None):
        x, y = _inputs_and_labels(batch)
        mode = self._model.mode(
            attrs.astuple(masks_of or weights, recurse=False), x, training
        )
        blocks = self.apply_blocks(weights, x, mode)
        loss = self._loss(output=blocks.output, label=y)
        return Forward(loss, blocks.output, weights, batch, mode, blocks)

    def _new_statistics(self, forward):
        return forward.blocks.non_trainable

    @property
    def num_blocks(self) -> int:
        """The number of blocks."""
        return self._model.num_blocks

    def apply_blocks(
        self,
        weights: Weights,
        x: Any,
        mode: block_model.Mode,
        start: int = 0,
        stop: int | None = None,
    ) -> block_model.ForwardPass:
        """Runs some blocks; see `block_model.BlockModel.apply_blocks`."""
        weights = (weights.trainable, weights.non_trainable)
        return self._model.apply_blocks(weights, x, mode, start, stop)

    def loss(self, output: Any, batch: Any) -> tf.Tensor:
        """Returns the mean loss of an output on a batch, []."""
        return self._loss(output=output, label=_inputs_and_labels(batch)[1])

    def mean_over_targets(self, values: tf.Tensor, batch: Any) -> tf.Tensor:
        """Returns the mean of values weighted as the loss weights targets, [].

        Args:
          values: One value per target, [n, ...], or one per example, [n], which all have
            the same weight.
          batch: The batch.
        """
        weights = self._model.target_weights(_inputs_and_labels(batch)[1])
        if weights is None or weights.shape.rank != values.shape.rank:
            return tf.reduce_mean(values)
        weights = tf.cast(weights, values.dtype)
        return tf.math.divide_no_nan(
            tf.reduce_sum(values * weights), tf.reduce_sum(weights)
        )


def _inputs_and_labels(batch: Any) -> tuple[Any, Any]:
    return (batch["x"], batch["y"]) if isinstance(batch, Mapping) else batch


class VariableLocalModel(LocalModel):
    """The view of a variable model, whose metrics are in its variables."""

    def __init__(self, model: tff.learning.models.VariableModel):
        self._model = model
        self.statistics = changed_in_training(model)

    def initial_metrics(self):
        return ()

    def _variables(self) -> Weights:
        return Weights(
            tuple(tf.nest.flatten(self._model.trainable_variables)),
            tuple(tf.nest.flatten(self._model.non_trainable_variables)),
        )

    def read_weights(self) -> Weights:
        """Returns the current values of the model's variables."""
        return tf.nest.map_structure(lambda v: v.read_value(), self._variables())

    def assign_weights(self, weights: Weights) -> None:
        """Sets the model's variables."""
        tf.nest.map_structure(lambda v, w: v.assign(w), self._variables(), weights)

    def loss_gradients(self, weights, metrics, batch):
        self.assign_weights(weights)
        with tf.GradientTape() as tape:
            output = convertible(self._model.forward_pass)(batch, training=True)
        gradients = tape.gradient(
            output.loss,
            self._variables().trainable,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return BatchResult(
            output.loss,
            dense(gradients),
            self.read_weights().non_trainable,
            metrics,
            self._num_examples(output),
        )

    def evaluate(self, weights, metrics, batch):
        self.assign_weights(weights)
        output = convertible(self._model.forward_pass)(batch, training=False)
        return Evaluation(output.loss, metrics, self._num_examples(output))

    def _num_examples(self, output: tff.learning.models.BatchOutput) -> tf.Tensor:
        if output.num_examples is None:
            return tf.shape(output.predictions, out_type=tf.int64)[0]
        return tf.cast(output.num_examples, tf.int64)

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        stored = self._model.local_variables
        before = [variable.read_value() for variable in stored]
        yield
        for variable, value in zip(stored, before, strict=True):
            variable.assign(value)

    def unfinalized_metrics(self, metrics, keep):
        def reset() -> tuple[()]:
            convertible(self._model.reset_metrics)()
            return ()

        tf.cond(keep, lambda: (), reset)
        return convertible(self._model.report_local_unfinalized_metrics)()


def dense(gradients: Iterable[tf.Tensor | tf.IndexedSlices]) -> Tensors:
    """Returns gradients as tensors: those of gathered rows are `tf.IndexedSlices`."""
    return tuple(map(tf.convert_to_tensor, gradients))


def is_functional(model: ModelOrFn) -> bool:
    """Returns whether `model` is functional, not a function that returns a model.

    Raises:
      TypeError: If `model` is neither.
    """
    if isinstance(model, tff.learning.models.FunctionalModel):
        return True
    # Keras' models can be called as well.
    if callable(model) and not _is_keras(model):
        return False
    raise TypeError(
        "Expected model_fn to be a tff.learning.models.FunctionalModel or a no-argument "
        "function that returns a tff.learning.models.VariableModel, found "
        f"{type(model)}.{_tip(model)}"
    )


def _is_keras(model: Any) -> bool:
    return hasattr(type(model), "trainable_weights")


def _tip(model: Any) -> str:
    if not _is_keras(model):
        return ""
    return " Tip: a function that calls tff.learning.models.from_keras_model."


def _call(
    model_fn: Callable[[], tff.learning.models.VariableModel],
) -> tff.learning.models.VariableModel:
    """Returns the model that a function returns.

    Raises:
      TypeError: If it returns something else.
    """
    model = convertible(model_fn)()
    if isinstance(model, tff.learning.models.VariableModel):
        return model
    raise TypeError(
        "Expected model_fn to return a tff.learning.models.VariableModel, found "
        f"{type(model)}.{_tip(model)}"
    )


def create(model: ModelOrFn) -> LocalModel:
    """Returns the view of `model`; to be called inside a TensorFlow computation."""
    if isinstance(model, block_model.BlockModel):
        return BlockLocalModel(model)
    if is_functional(model):
        return _FunctionalLocalModel(model)
    return VariableLocalModel(_call(model))


class NoBlocksError(TypeError):
    """A model is not a chain of as many blocks as an algorithm needs."""


def require_blocks(model: ModelOrFn, minimum: int = 1) -> block_model.BlockModel:
    """Returns the model if it is a chain of at least `minimum` blocks.

    Raises:
      NoBlocksError: If it is not.
    """
    if isinstance(model, block_model.BlockModel) and model.num_blocks >= minimum:
        return model
    found = type(model)
    if isinstance(model, block_model.BlockModel):
        found = f"one of {model.num_blocks}"
    raise NoBlocksError(
        "Expected model_fn to be a tff_algos.models.BlockModel of at least "
        f"{minimum} blocks, found {found}. Tip: the models of the tasks are such, and so "
        "are, with tasks.from_arrays, Keras models that are chains of layers."
    )


def statistics_of(model: ModelOrFn) -> tuple[bool, ...]:
    """Returns for each non-trainable weight whether training changes it.

    Only floating-point weights count: the mean over clients of others means nothing.
    """
    if isinstance(model, block_model.BlockModel):
        return model.statistics
    if is_functional(model):
        return (False,) * len(tf.nest.flatten(model.initial_weights[1]))
    with tf.Graph().as_default():
        return changed_in_training(_call(model))


def _input_spec(model: ModelOrFn) -> Any:
    if is_functional(model):
        return model.input_spec
    # A separate graph keeps the model's variables out of the caller's graph.
    with tf.Graph().as_default():
        return _call(model).input_spec


def data_type(model: ModelOrFn) -> tff.Type:
    """Returns the type of one client's batches, `B*`."""
    return tff.SequenceType(tff.types.tensorflow_to_type(_input_spec(model)))


def build_initial_weights_computation(model: ModelOrFn) -> tff.Computation:
    """Returns `( -> tff.learning.models.ModelWeights)`, the initial weights."""

    @tff.tensorflow.computation
    def initial_weights():
        if is_functional(model):
            trainable, non_trainable = model.initial_weights
            return tff.learning.models.ModelWeights(
                tuple(tf.convert_to_tensor(weight) for weight in trainable),
                tuple(tf.convert_to_tensor(weight) for weight in non_trainable),
            )
        return tff.learning.models.ModelWeights.from_model(_call(model))

    return initial_weights


def weights_type(model: ModelOrFn) -> tff.Type:
    """Returns the type of `tff.learning.models.ModelWeights` of the model."""
    return build_initial_weights_computation(model).type_signature.result


def trainable_specs(model: ModelOrFn) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs of the trainable weights, in the model's order."""
    return _specs(weights_type(model).trainable)


def non_trainable_specs(model: ModelOrFn) -> tuple[tf.TensorSpec, ...]:
    """Returns the specs of the non-trainable weights, in the model's order."""
    return _specs(weights_type(model).non_trainable)


def _specs(weights_type: tff.Type) -> tuple[tf.TensorSpec, ...]:
    return tuple(tf.nest.flatten(tff.types.type_to_tf_tensor_specs(weights_type)))


def build_metrics_aggregation(
    model: ModelOrFn,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
) -> tff.Computation:
    """Returns the aggregation of clients' unfinalized metrics."""
    aggregator = metrics_aggregator or tff.learning.metrics.sum_then_finalize
    if is_functional(model):
        return aggregator(model.finalize_metrics)
    with tf.Graph().as_default():
        return aggregator(_call(model).metric_finalizers())


def flatten(weights: tff.learning.models.ModelWeights) -> Weights:
    """Returns `weights` as flat tuples, in the model's order."""
    return Weights(
        tuple(tf.nest.flatten(weights.trainable)),
        tuple(tf.nest.flatten(weights.non_trainable)),
    )
