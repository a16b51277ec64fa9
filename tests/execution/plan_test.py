"""Plans: server stages and passes take turns, and passes share what they can."""

import numpy as np
import tensorflow_federated as tff

from tests.testing.leaves import CLIENT_FLOATS, double, passes_of, steps_of
from tff_algos.execution import plan


def kinds(computation):
    """Of each step, "stage", or how many aggregates and kept values a pass has."""
    return [
        (len(step.aggregates), len(step.kept))
        if isinstance(step, plan.ClientPass)
        else "stage"
        for step in steps_of(computation)
    ]


@tff.tensorflow.computation(np.float32, np.float32)
def plus(x, y):
    return x + y


def test_independent_aggregations_share_a_pass():
    @tff.federated_computation(CLIENT_FLOATS)
    def sums(x):
        doubled = tff.federated_map(double, x)
        return tff.federated_sum(x), tff.federated_sum(doubled)

    assert [step[0] for step in kinds(sums) if step != "stage"] == [2]


def test_an_aggregation_that_needs_another_is_a_later_pass():
    @tff.federated_computation(CLIENT_FLOATS)
    def sum_of_shifted(x):
        total = tff.federated_broadcast(tff.federated_sum(x))
        return tff.federated_sum(tff.federated_map(plus, (x, total)))

    assert [step[0] for step in kinds(sum_of_shifted) if step != "stage"] == [1, 1]


def test_work_that_two_passes_need_runs_once_and_is_kept():
    @tff.federated_computation(CLIENT_FLOATS)
    def twice(x):
        doubled = tff.federated_map(double, x)
        total = tff.federated_broadcast(tff.federated_sum(doubled))
        return tff.federated_sum(tff.federated_map(plus, (doubled, total)))

    first, second = passes_of(twice)
    assert (len(first.kept), len(second.kept)) == (1, 0)
    assert len(first.fragment.nodes) == len(second.fragment.nodes) == 1


def test_what_clients_give_as_results_is_kept():
    @tff.federated_computation(CLIENT_FLOATS)
    def doubles(x):
        return tff.federated_map(double, x)

    assert kinds(doubles) == [(0, 1)]


def test_what_only_passes_values_on_has_no_steps():
    @tff.federated_computation(CLIENT_FLOATS, np.float32)
    def swap(x, y):
        return y, x

    assert kinds(swap) == []
