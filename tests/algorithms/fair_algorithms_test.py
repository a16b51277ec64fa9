"""What holds for every fair algorithm, whatever clients and their order are."""

import numpy as np
import pytest

from tests.testing import problems
from tests.testing.fair_processes import (
    CLIENTS,
    FAIR,
    RATE,
    after,
    assert_close,
    broken_and_empty,
    cohort,
    cohort_for,
    process,
)

START = problems.initial_vector()


@pytest.mark.parametrize(
    ("name", "changes"),
    [("fedmgda", {}), ("qfedavg", {"q": 0.0, "lipschitz": 7.0}), ("afl", {})],
)
def test_one_client_alone_sets_the_server_model(name, changes):
    alone = cohort_for(name, cohort(CLIENTS[:1]))
    expected, _ = CLIENTS[0].local_sgd(START, RATE, batch_size=2, epochs=2)
    assert_close(after(process(name, **changes), alone), expected)


@pytest.mark.parametrize("name", FAIR)
def test_the_order_of_clients_does_not_matter(name):
    data, order = cohort(), [2, 0, 3, 1]
    in_order = cohort_for(name, data)
    permuted = cohort_for(name, [data[k] for k in order], order)
    # Aggregation weights are float32; AFL's are fractions, so their sum rounds.
    np.testing.assert_allclose(
        after(process(name), permuted, permuted),
        after(process(name), in_order, in_order),
        rtol=1e-6 if name == "afl" else 1e-9,
        atol=1e-10,
    )


@pytest.mark.parametrize("name", FAIR)
def test_invalid_clients_are_as_good_as_absent(name):
    data, invalid = cohort(), broken_and_empty()
    valid = cohort_for(name, data)
    mixed = [invalid[0], data[0], invalid[1], *data[1:], invalid[2]]
    mixed = cohort_for(name, mixed, [4, 0, 5, 1, 2, 3, 6])
    weights, output = problems.run(process(name), mixed, mixed)
    assert_close(weights, after(process(name), valid, valid))
    measured = output.metrics["client_work"]
    assert measured["num_non_finite_clients"] == 2
    assert measured["num_empty_clients"] == 1
    assert np.isfinite(measured["train"]["loss"])


@pytest.mark.parametrize("name", FAIR)
def test_a_round_without_valid_clients_changes_nothing(name):
    fair, data = process(name), cohort_for(name, cohort())
    before = fair.next(fair.initialize(), data).state
    output = fair.next(before, cohort_for(name, broken_and_empty(), [4, 5, 6]))
    assert output.metrics["finalizer"]["num_rejected_rounds"] == 1
    np.testing.assert_array_equal(
        problems.vector_of(fair, output.state), problems.vector_of(fair, before)
    )
    # The next round goes on as if that one had not been.
    np.testing.assert_array_equal(
        problems.vector_of(fair, fair.next(output.state, data).state),
        problems.vector_of(fair, fair.next(before, data).state),
    )
