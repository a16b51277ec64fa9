"""The total weight of the clients, beside another aggregate."""

import collections

import tensorflow_federated as tff

from tff_algos.aggregators.exclude_non_finite import weighted_or_mean


class TotalWeightFactory(tff.aggregators.WeightedAggregationFactory):
    """Adds the sum of the clients' weights to another factory's aggregate.

    For server updates that need the number of clients or examples behind a mean.
    """

    def __init__(
        self, inner: tff.aggregators.WeightedAggregationFactory | None = None
    ) -> None:
        """Wraps `inner`, a `MeanFactory` by default.

        Raises:
          TypeError: If `inner` is not a weighted aggregation factory.
        """
        self._inner = weighted_or_mean(inner)

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Returns the process for values and weights of the given types.

        Its result is `<value=the inner process's, total_weight=of the weights' type>`.
        Its state and measurements are the inner process's.
        """
        process = self._inner.create(value_type, weight_type)

        @tff.federated_computation(
            process.next.type_signature.parameter[0],
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            output = process.next(state, value, weight)
            result = tff.federated_zip(
                collections.OrderedDict(
                    value=output.result, total_weight=tff.federated_sum(weight)
                )
            )
            return tff.templates.MeasuredProcessOutput(
                output.state, result, output.measurements
            )

        return tff.templates.AggregationProcess(process.initialize, next_fn)
