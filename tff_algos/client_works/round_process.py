"""Client work whose state is the round, built from a single client's update."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.autograph import convertible
from tff_algos.client_works.client_report import ClientReport, UpdateWithStatistics
from tff_algos.clients.client_data import ClientData, ClientDataFields
from tff_algos.models import local_model
from tff_algos.models.local_model import LocalModel, ModelOrFn

_BATCHES_ALONE = ClientDataFields()

ClientUpdate = Callable[
    [LocalModel, tf.Tensor, tff.learning.models.ModelWeights, ClientData],
    tuple[ClientReport, Mapping[str, tf.Tensor]],
]


def measurements(train_metrics: Any, counts: Any, **others: Any) -> Any:
    """Zips train metrics, summed counts of the clients and `others` at the server."""
    names = tff.structure.name_list(counts.type_signature.member)
    return tff.federated_zip(
        collections.OrderedDict(
            train=train_metrics,
            **{name: tff.federated_sum(counts[name]) for name in names},
            **others,
        )
    )


def largest(value: Any) -> Any:
    """Returns the clients' maximum at the server; NaN if no client has a value.

    A client without a value reports the lowest number of the dtype. Integers have no
    NaN: their maximum is then that number.
    """
    return tff.federated_map(_nan_unless_any, tff.federated_max(value))


@tff.tensorflow.computation
def _nan_unless_any(maximum):
    if not maximum.dtype.is_floating:
        return maximum
    nothing = tf.equal(maximum, maximum.dtype.min)
    return tf.where(nothing, tf.constant(np.nan, maximum.dtype), maximum)


def with_index(
    result: tff.learning.templates.ClientResult, client_index: tf.Tensor
) -> tff.learning.templates.ClientResult:
    """Returns a client's result with the client's index in its update."""
    update = result.update
    if isinstance(update, UpdateWithStatistics):
        update = attrs.evolve(update, update=_indexed(client_index, update.update))
    else:
        update = _indexed(client_index, update)
    return tff.learning.templates.ClientResult(update, result.update_weight)


def _indexed(client_index: tf.Tensor, update: Any) -> Mapping[str, Any]:
    return collections.OrderedDict(client_index=client_index, update=update)


def build_round_process(
    model: ModelOrFn,
    client_update: ClientUpdate,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    *,
    fields: ClientDataFields = _BATCHES_ALONE,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds the process that counts rounds and runs `client_update` on every client.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function that
        returns a `tff.learning.models.VariableModel`.
      client_update: Maps the view of the model, the round (int32 []), the server's
        weights and the client's data to the client's report and named scalars, whose
        maximum over the clients, of `largest`, is measured.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      fields: The fields of clients' data beside the batches; not a memory. With
        `client_index`, updates are `<client_index=int32, update=...>`, for stateful
        aggregators; with `num_examples`, example weights are that number.

    Returns:
      A process whose state is the round, `int32@SERVER`, and whose `next` maps
      `<int32@SERVER, {ModelWeights}@CLIENTS, {B*}@CLIENTS>` to client results of type
      `<update, update_weight=float32>@CLIENTS` and the measurements `<train=metrics,
      num_non_finite_clients=int32, num_empty_clients=int32>`, followed by those of
      `client_update`.
    """
    weights_type = local_model.weights_type(model)
    data_type = fields.type(model)
    aggregate_metrics = local_model.build_metrics_aggregation(model, metrics_aggregator)

    @tff.federated_computation
    def initialize():
        return tff.federated_value(0, tff.SERVER)

    @tff.tensorflow.computation(np.int32, weights_type, data_type)
    def client_work(round_num, server_weights, data):
        view = local_model.create(model)

        @tf.function
        def work(round_num, server_weights, data):
            own = fields.read(data)
            update = convertible(client_update)
            report, scalars = update(view, round_num, server_weights, own)
            report = report.with_num_examples(own.num_examples)
            result = report.result
            if fields.client_index:
                result = with_index(result, own.client_index)
            return (
                result,
                report.metrics,
                report.counts,
                collections.OrderedDict(scalars),
            )

        return work(round_num, server_weights, data)

    @tff.tensorflow.computation(np.int32)
    def next_round(round_num):
        return round_num + 1

    names = tff.structure.name_list(client_work.type_signature.result[3])

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_fn(round_num, weights, client_data):
        result, metrics, counts, scalars = tff.federated_map(
            client_work, (tff.federated_broadcast(round_num), weights, client_data)
        )
        maxima = {name: largest(scalars[name]) for name in names}
        return tff.templates.MeasuredProcessOutput(
            tff.federated_map(next_round, round_num),
            result,
            measurements(aggregate_metrics(metrics), counts, **maxima),
        )

    return tff.learning.templates.ClientWorkProcess(initialize, next_fn)
