"""Averages clients' statistics of their examples, beside another aggregate.

Moving means and variances of batch normalization are not trained, so updates do not
include them. They are averaged separately, weighted by their numbers of examples.
"""

import collections

import tensorflow_federated as tff

from tff_algos.aggregators.exclude_non_finite import weighted_or_mean
from tff_algos.aggregators.mean import MeanFactory


class StatisticsFactory(tff.aggregators.WeightedAggregationFactory):
    """Averages statistics weighted by examples; another factory aggregates updates.

    Values are `<update, statistics, num_examples>`.
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

        Its result is `<update=the inner process's, statistics=their mean>`. Its state
        and measurements are the inner process's.

        Raises:
          TypeError: If `value_type` is anything else.
        """
        _check_type(value_type)
        inner = self._inner.create(value_type.update, weight_type)
        mean = MeanFactory().create(value_type.statistics, value_type.num_examples)

        @tff.federated_computation
        def initialize():
            return tff.federated_zip((inner.initialize(), mean.initialize()))

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            inner_state, mean_state = state
            output = inner.next(inner_state, value.update, weight)
            means = mean.next(mean_state, value.statistics, value.num_examples)
            return tff.templates.MeasuredProcessOutput(
                tff.federated_zip((output.state, means.state)),
                tff.federated_zip(
                    collections.OrderedDict(
                        update=output.result, statistics=means.result
                    )
                ),
                output.measurements,
            )

        return tff.templates.AggregationProcess(initialize, next_fn)


def _check_type(value_type: tff.Type) -> None:
    names = ["update", "statistics", "num_examples"]
    is_struct = isinstance(value_type, tff.StructType)
    if not is_struct or tff.structure.name_list(value_type) != names:
        raise TypeError(
            f"Expected value_type <{', '.join(f'{n}=...' for n in names)}>, found "
            f"{value_type}."
        )
