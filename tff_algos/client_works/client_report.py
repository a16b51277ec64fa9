"""What clients report at the end of their work, and which clients are excluded."""

import collections
import itertools
from typing import Any

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.finite import all_finite, zero_unless
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models.local_model import LocalModel, Tensors


def client_weight(
    weighting: tff.learning.ClientWeighting, num_examples: tf.Tensor
) -> tf.Tensor:
    """Returns a client's aggregation weight, float32 []; 0 if it has no examples.

    Raises:
      HyperparameterError: If `weighting` is no `tff.learning.ClientWeighting`.
    """
    if not isinstance(weighting, tff.learning.ClientWeighting):
        raise HyperparameterError(
            "client_weighting", weighting, "a tff.learning.ClientWeighting"
        )
    if weighting == tff.learning.ClientWeighting.UNIFORM:
        return tf.cast(num_examples > 0, tf.float32)
    return tf.cast(num_examples, tf.float32)


@attrs.frozen
class UpdateWithStatistics:
    """The update of a model that has moving statistics of examples.

    Attributes:
      update: The update of the trainable weights, with their structure.
      statistics: The non-trainable weights that training changes, after the client's
        work, a tuple; batch normalization's moving means and variances.
      num_examples: The number of examples behind the statistics, float32 []; 0 if the
        client is excluded.
    """

    update: Any
    statistics: Any
    num_examples: Any


@attrs.frozen
class ClientReport:
    """What one client reports at the end of its work.

    Attributes:
      result: The `tff.learning.templates.ClientResult`; a zero update of weight zero if
        the client is excluded.
      metrics: Its unfinalized metrics.
      counts: This client's `num_non_finite_clients`, `num_empty_clients` and those of
        `with_count`, int32 [], to be summed.
      counts_in: Whether the client takes part, that is, is not excluded; bool [].
      weighs_by_examples: Whether its weight is its number of examples.
    """

    result: tff.learning.templates.ClientResult
    metrics: Any
    counts: collections.OrderedDict[str, tf.Tensor]
    counts_in: tf.Tensor
    weighs_by_examples: bool

    def with_weight(self, weight: tf.Tensor) -> "ClientReport":
        """Returns the report with another weight, or 0 if the client is excluded."""
        result = tff.learning.templates.ClientResult(
            update=self.result.update,
            update_weight=zero_unless(self.counts_in, weight),
        )
        return attrs.evolve(self, result=result, weighs_by_examples=False)

    def with_count(self, name: str, count: tf.Tensor) -> "ClientReport":
        """Returns the report with one more count, 0 if the client is excluded."""
        counts = collections.OrderedDict(self.counts)
        counts[name] = zero_unless(self.counts_in, count)
        return attrs.evolve(self, counts=counts)

    def without_statistics(self) -> "ClientReport":
        """Returns the report of the update alone."""
        update = self.result.update
        if not isinstance(update, UpdateWithStatistics):
            return self
        result = tff.learning.templates.ClientResult(
            update=update.update, update_weight=self.result.update_weight
        )
        return attrs.evolve(self, result=result)

    def with_num_examples(self, num_examples: tf.Tensor | None) -> "ClientReport":
        """Returns the report with another number of examples.

        Weights that are example counts, of the update or of its statistics, become
        `num_examples` instead of the number of examples processed.

        Args:
          num_examples: n_k, int64 []; None for the number of examples processed.
        """
        if num_examples is None:
            return self
        own = zero_unless(self.counts_in, tf.cast(num_examples, tf.float32))
        update = self.result.update
        if isinstance(update, UpdateWithStatistics):
            update = attrs.evolve(update, num_examples=own)
        weight = own if self.weighs_by_examples else self.result.update_weight
        return attrs.evolve(
            self, result=tff.learning.templates.ClientResult(update, weight)
        )


def report(
    model: LocalModel,
    server_weights: tff.learning.models.ModelWeights,
    update: Tensors,
    weighting: tff.learning.ClientWeighting,
    num_examples: tf.Tensor,
    metrics: Any,
    *also_finite: Any,
    non_trainable: Tensors,
) -> ClientReport:
    """Builds a client's report and excludes invalid clients.

    A client whose update contains NaN or infinity is excluded: it reports a zero
    update of weight zero and no metrics. So is a client without examples, even with
    uniform weights.

    Args:
      model: The view that the client worked with.
      server_weights: The weights that it started from, for their structure.
      update: Its update, flat, in the order of the trainable weights.
      weighting: How clients are weighted.
      num_examples: Examples that the client processed, int64 [].
      metrics: The metrics state after its work.
      *also_finite: Further structures whose tensors must be finite.
      non_trainable: The non-trainable weights after its work; if some of them are
        statistics, the update is an `UpdateWithStatistics`.
    """
    statistics = tuple(itertools.compress(non_trainable, model.statistics))
    finite = all_finite([update, statistics, *also_finite])
    empty = tf.equal(num_examples, 0)
    keep = tf.logical_and(finite, tf.logical_not(empty))
    update = tf.nest.pack_sequence_as(server_weights.trainable, update)
    if statistics:
        count = tf.cast(num_examples, tf.float32)
        update = UpdateWithStatistics(update, statistics, count)
    weight = client_weight(weighting, num_examples)
    return ClientReport(
        result=tff.learning.templates.ClientResult(
            update=zero_unless(keep, update),
            update_weight=zero_unless(keep, weight),
        ),
        metrics=model.unfinalized_metrics(metrics, keep),
        counts=collections.OrderedDict(
            num_non_finite_clients=tf.cast(tf.logical_not(finite), tf.int32),
            num_empty_clients=tf.cast(empty, tf.int32),
        ),
        counts_in=keep,
        weighs_by_examples=weighting == tff.learning.ClientWeighting.NUM_EXAMPLES,
    )
