"""A `tff.learning.models.VariableModel` that keeps a functional model's metrics.

`tff.learning.models.model_from_functional` reports only the example-weighted loss; this
wrapper reports all metrics of the functional model.
"""

import collections
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.autograph import convertible
from tff_algos.models.block_model import BlockModel


class FunctionalVariableModel(tff.learning.models.VariableModel):
    """A functional model with its weights and its metrics in variables.

    Its methods are those of `tff.learning.models.VariableModel`; each instance has
    variables of its own, with the model's initial weights. In training, `forward_pass`
    updates a block model's moving statistics, as Keras does.

    Args:
      model: The functional model, whose metrics are reported in full.
    """

    def __init__(self, model: tff.learning.models.FunctionalModel):
        self._model = model
        trainable, non_trainable = model.initial_weights
        self._trainable = tuple(tf.Variable(value) for value in trainable)
        self._non_trainable = tuple(
            tf.Variable(value, trainable=False) for value in non_trainable
        )
        self._metrics = tf.nest.map_structure(
            lambda value: tf.Variable(value, trainable=False),
            model.initialize_metrics_state(),
        )

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        return self._trainable

    @property
    def non_trainable_variables(self) -> tuple[tf.Variable, ...]:
        return self._non_trainable

    @property
    def local_variables(self) -> tuple[tf.Variable, ...]:
        return tuple(tf.nest.flatten(self._metrics))

    @property
    def input_spec(self) -> Any:
        return self._model.input_spec

    @tf.function
    def predict_on_batch(self, x: Any, training: bool = True) -> Any:
        return self._model.predict_on_batch(self._weights(), x, training=training)

    def _weights(self) -> Any:
        return tf.nest.map_structure(
            lambda variable: variable.read_value(),
            (self._trainable, self._non_trainable),
        )

    def _predict_and_update_statistics(self, x: Any) -> Any:
        model, weights = self._model, self._weights()
        result = model.apply_blocks(weights, x, model.mode(weights, x))
        statistics = zip(self._non_trainable, result.non_trainable, strict=True)
        for variable, value in itertools.compress(statistics, model.statistics):
            variable.assign(value)
        return result.output

    @tf.function
    def forward_pass(
        self, batch_input: Any, training: bool = True
    ) -> tff.learning.models.BatchOutput:
        if isinstance(batch_input, Mapping):
            x, y = batch_input["x"], batch_input["y"]
        else:
            x, y = batch_input
        if training and isinstance(self._model, BlockModel):
            predictions = self._predict_and_update_statistics(x)
        else:
            predictions = self.predict_on_batch(x, training=training)
        output = tff.learning.models.BatchOutput(
            loss=convertible(self._model.loss)(output=predictions, label=y),
            predictions=predictions,
            num_examples=tf.shape(tf.nest.flatten(predictions)[0])[0],
        )
        state = tf.nest.map_structure(lambda v: v.read_value(), self._metrics)
        self._assign_metrics(
            self._model.update_metrics_state(state, labels=y, batch_output=output)
        )
        return output

    @tf.function
    def report_local_unfinalized_metrics(self) -> collections.OrderedDict[str, Any]:
        return tf.nest.map_structure(lambda v: v.read_value(), self._metrics)

    def metric_finalizers(self) -> collections.OrderedDict[str, Callable]:
        return collections.OrderedDict(
            (name, self._finalizer(name)) for name in self._metrics
        )

    @tf.function
    def reset_metrics(self) -> None:
        self._assign_metrics(self._model.initialize_metrics_state())

    def _assign_metrics(self, state: Any) -> None:
        tf.nest.map_structure(
            lambda variable, value: variable.assign(value), self._metrics, state
        )

    def _finalizer(self, name: str) -> Callable[[Any], tf.Tensor]:
        def finalize(value):
            # A functional model can only finalize all of its metrics together.
            state = collections.OrderedDict(self._model.initialize_metrics_state())
            state[name] = value
            return self._model.finalize_metrics(state)[name]

        return finalize
