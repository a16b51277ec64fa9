"""The mean of clients' updates together with the individual updates."""

import collections

import numpy as np
import tensorflow_federated as tff

from tff_algos.aggregators.exclude_non_finite import (
    build_exclude_computation,
    weighted_or_mean,
)
from tff_algos.aggregators.gather import build_gather_computation
from tff_algos.aggregators.latest_updates import indexed_update_type


class MeanAndRowsFactory(tff.aggregators.WeightedAggregationFactory):
    """Returns the mean and, with its client's index and weight, every client's update.

    Values are `<client_index, update>`, with an int32 index. The mean is another
    factory's aggregate of the updates. Updates that are not finite are replaced by zero
    updates of weight zero. Updates count as sent once for both, but with another factory
    than the default once for each.

    The server sees individual, identified clients' updates: incompatible with secure
    aggregation and with privacy mechanisms that require sums.
    """

    def __init__(
        self, inner: tff.aggregators.WeightedAggregationFactory | None = None
    ) -> None:
        """Wraps `inner`, a `MeanFactory` by default.

        Raises:
          TypeError: If `inner` is not a weighted aggregation factory.
        """
        self._is_mean = inner is None
        self._inner = weighted_or_mean(inner)

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Returns the process for values `<client_index, update>` and their weights.

        Its result is `<mean=the inner process's, rows=<client_index=int32[?],
        weight=[?], update=update with a leading axis of ?>>`, one row per client in
        their order; its state is the inner process's. Measurements:
        `num_non_finite_clients` (int32) and the inner process's, under `inner`.

        Raises:
          TypeError: If `value_type` is anything else, or an update has tensors that
            are not floating point or whose shape is unknown.
        """
        update_type = indexed_update_type(value_type)
        exclude = build_exclude_computation(update_type, weight_type)
        process = self._inner.create(update_type, weight_type)
        gather = build_gather_computation(
            tff.to_type(
                collections.OrderedDict(
                    client_index=np.int32, weight=weight_type, update=update_type
                )
            ),
            # The rows follow from what clients send for their weighted mean, but not from
            # what another factory makes of them, such as quantized updates.
            is_sent=not self._is_mean,
        )

        @tff.federated_computation(
            process.next.type_signature.parameter[0],
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            update, weight, excluded = tff.federated_map(
                exclude, (value.update, weight)
            )
            output = process.next(state, update, weight)
            rows = gather(
                tff.federated_zip(
                    collections.OrderedDict(
                        client_index=value.client_index, weight=weight, update=update
                    )
                )
            )
            return tff.templates.MeasuredProcessOutput(
                output.state,
                tff.federated_zip(
                    collections.OrderedDict(mean=output.result, rows=rows)
                ),
                tff.federated_zip(
                    collections.OrderedDict(
                        num_non_finite_clients=tff.federated_sum(excluded),
                        inner=output.measurements,
                    )
                ),
            )

        return tff.templates.AggregationProcess(process.initialize, next_fn)
