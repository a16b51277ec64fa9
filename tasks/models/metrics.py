"""Losses and metrics of classifiers that return logits, as pure TF functions.

The unfinalized metrics are sums, so they can be summed over batches and clients
(`tff.learning.metrics.sum_then_finalize`).
"""

import collections
from collections.abc import Callable
from typing import Any

import attrs
import tensorflow as tf
import tensorflow_federated as tff

MetricsState = collections.OrderedDict[str, Any]


@attrs.frozen(kw_only=True)
class Classification:
    """The loss and the metrics of a classifier; a target may be padding.

    A target is one label: of an example (labels `[n]`, logits `[n, classes]`)
    or of a token (labels `[n, time]`, logits `[n, time, classes]`).

    Attributes:
      padding_id: Targets of this value count neither in the loss nor in the accuracy;
        `None` if every target counts.
      unscored_ids: Targets of these values count in the loss but not in the accuracy,
        such as ends of sentences, which a model must learn but which are not words.
    """

    padding_id: int | None = None
    unscored_ids: tuple[int, ...] = ()

    def loss(
        self,
        output: tf.Tensor,
        label: tf.Tensor,
        sample_weight: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns the mean cross entropy over the targets that count, float32 scalar.

        Args:
          output: Logits, float32 `[..., classes]`.
          label: Class ids, int32 `[...]`.
          sample_weight: Optional weights of the examples in the mean, `[n]`.

        Returns:
          The mean; 0 if no target counts.
        """
        weights = self.target_weights(label, sample_weight)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, output)
        return tf.math.divide_no_nan(
            tf.reduce_sum(losses * weights), tf.reduce_sum(weights)
        )

    def metrics_fns(self) -> tuple[Callable, Callable, Callable]:
        """Returns `(initialize, update, finalize)` for a `FunctionalModel`.

        Finalized metrics: "loss" and "accuracy" (float32, means over the targets that
        count in each, 0 if there are none), "num_examples" and "num_batches" (int64).
        Given a part of the state, `finalize` returns that part of the metrics. With
        sample weights, examples of weight 0 and batches of such examples are not
        counted.
        """
        return initialize_metrics, self._update_metrics, finalize_metrics

    def target_weights(
        self, label: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Returns float32 weights of the targets in the loss, of the shape of `label`."""
        if self.padding_id is None:
            weights = tf.ones_like(label, tf.float32)
        else:
            weights = tf.cast(tf.not_equal(label, self.padding_id), tf.float32)
        if sample_weight is not None:
            sample_weight = tf.cast(sample_weight, tf.float32)
            ones = [1] * (label.shape.rank - 1)
            weights *= tf.reshape(sample_weight, [-1, *ones])
        return weights

    def _update_metrics(
        self,
        state: MetricsState,
        labels: tf.Tensor,
        batch_output: tff.learning.models.BatchOutput,
        sample_weight: tf.Tensor | None = None,
    ) -> MetricsState:
        """Returns `state` with one batch added.

        Args:
          state: The result of `initialize_metrics` or an earlier update.
          labels: Class ids, int32 `[...]`.
          batch_output: `predictions` are the logits, `loss` is the batch's loss.
          sample_weight: The weights used for the loss, `[n]`.
        """
        weights = self.target_weights(labels, sample_weight)
        weight = tf.reduce_sum(weights)
        for unscored in self.unscored_ids:
            weights *= tf.cast(tf.not_equal(labels, unscored), tf.float32)
        predicted = tf.argmax(
            batch_output.predictions, axis=-1, output_type=labels.dtype
        )
        correct = tf.reduce_sum(
            weights * tf.cast(tf.equal(predicted, labels), tf.float32)
        )
        if sample_weight is None:
            num_examples = tf.shape(labels, tf.int64)[0]
            num_batches = tf.constant(1, tf.int64)
        else:
            num_examples = tf.math.count_nonzero(sample_weight)
            num_batches = tf.cast(num_examples > 0, tf.int64)
        loss_sum, loss_weight = state["loss"]
        correct_sum, correct_weight = state["accuracy"]
        return collections.OrderedDict(
            loss=(loss_sum + batch_output.loss * weight, loss_weight + weight),
            accuracy=(correct_sum + correct, correct_weight + tf.reduce_sum(weights)),
            num_examples=state["num_examples"] + num_examples,
            num_batches=state["num_batches"] + num_batches,
        )


def initialize_metrics() -> MetricsState:
    """Returns the state before the first batch: zero sums.

    Means are tuples of a sum and a weight; `tf.data` would convert lists to tensors.
    """
    return collections.OrderedDict(
        loss=(tf.constant(0.0), tf.constant(0.0)),
        accuracy=(tf.constant(0.0), tf.constant(0.0)),
        num_examples=tf.constant(0, tf.int64),
        num_batches=tf.constant(0, tf.int64),
    )


def finalize_metrics(state: MetricsState) -> collections.OrderedDict[str, tf.Tensor]:
    """Returns the metrics of a (summed) state; (sum, weight) pairs become means."""
    return collections.OrderedDict(
        (name, _finalize_metric(value)) for name, value in state.items()
    )


def _finalize_metric(value: Any) -> tf.Tensor:
    # Not isinstance: inside a computation, TFF passes its own tuple types.
    if tf.is_tensor(value):
        return tf.identity(value)
    total, weight = value
    return tf.math.divide_no_nan(total, weight)
