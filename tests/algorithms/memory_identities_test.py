"""Exact identities of algorithms that remember, named after their claims.

SCAFFOLD, FedDyn, MIFA, GradMA's family, MOON and FedMLB.
"""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated import learning

from tests.testing import block_problems, problems
from tests.testing.remembering_cohorts import Training, run, vector
from tests.testing.remembering_processes import (
    ALGORITHMS,
    BATCH,
    CLIENTS,
    EPOCHS,
    NUM_CLIENTS,
    RATE,
    cohort,
    invalid_clients,
    model_of,
    process,
    some_rounds,
)

UNIFORM = learning.ClientWeighting.UNIFORM


def one_step_each(numbers=(0, 1, 2, 3), **kwargs):
    return cohort(numbers, batch_size=None, epochs=1, **kwargs)


def trained(number, start, **kwargs):
    """The weights of a client after its local steps, in NumPy."""
    return CLIENTS[number].local_sgd(start, RATE, BATCH, EPOCHS, **kwargs)[0]


def after(process, *cohorts):
    """The weights after one round per cohort."""
    return run(process, NUM_CLIENTS, *cohorts).weights


def assert_same_bits(left, right, *cohorts):
    found = after(left, *cohorts)
    assert np.max(np.abs(found - Training(left, NUM_CLIENTS).weights)) > 1e-2
    np.testing.assert_array_equal(found, after(right, *cohorts))


def assert_close(found, expected, rtol=1e-9, atol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def assert_differ(left, right):
    assert np.max(np.abs(left - right)) > 1e-3


def test_gradma_s_without_memory_is_fedavgm_to_the_bit():
    data = some_rounds("linear32")
    constants = {"server_learning_rate": 0.8, "server_momentum": 0.5}
    gradma_s = process(
        "gradma_s", "linear32", memory_size=0, memory_decay=0.25, **constants
    )
    assert_same_bits(gradma_s, process("fedavgm", "linear32", **constants), *data)


def test_gradma_s_is_not_fedavg():
    data = some_rounds()
    assert_differ(after(process("gradma_s"), *data), after(process("fedavg"), *data))


def test_gradma_w_with_one_local_step_is_fedavg_to_the_bit():
    data = one_step_each()
    assert_same_bits(process("gradma_w"), process("fedavg"), data, data)


def test_gradma_w_without_rows_is_fedavg_to_the_bit():
    data = some_rounds()
    free = process("gradma_w", local_rows=())
    assert_same_bits(free, process("fedavg"), *data)
    assert_differ(after(process("gradma_w"), *data), after(free, *data))


def test_gradma_with_one_local_step_is_gradma_s_to_the_bit():
    data = [one_step_each(numbers) for numbers in ((0, 1, 2), (3, 1), (0, 3, 6, 2))]
    assert_same_bits(process("gradma"), process("gradma_s"), *data)
    longer = some_rounds()
    assert_differ(
        after(process("gradma"), *longer), after(process("gradma_s"), *longer)
    )


def test_gradma_without_memory_and_momentum_is_gradma_w():
    data = some_rounds()
    gradma = process(
        "gradma", memory_size=0, server_momentum=0.0, server_learning_rate=1.0
    )
    assert_close(after(gradma, *data), after(process("gradma_w"), *data))


@pytest.mark.parametrize("size", [NUM_CLIENTS, NUM_CLIENTS + 3])
def test_a_memory_for_all_clients_is_one_without_reduction(size):
    def rows(**kwargs):
        state = process("gradma_s", **kwargs).initialize()
        return tf.nest.flatten(state.finalizer.rows)[0].shape[0]

    assert rows(memory_size=size) == rows() == NUM_CLIENTS
    assert rows(memory_size=6) == 6


# Momentum 0 is one optimizer for all three.
@pytest.mark.parametrize(
    "name",
    [
        "mifa",
        pytest.param("moon", marks=pytest.mark.slow),
        pytest.param("fedmlb", marks=pytest.mark.slow),
    ],
)
def test_with_momentum_zero_it_is_the_one_without_momentum_to_the_bit(name):
    data = some_rounds(model_of(name))
    still = process(f"{name}m", server_momentum=0.0)
    assert_same_bits(still, process(name), *data)


def test_moon_of_strength_zero_is_fedavg_to_the_bit():
    data = some_rounds("blocks")
    free = process("moon", contrastive_strength=0.0)
    assert_same_bits(free, process("fedavg", "blocks"), *data)


def test_moon_is_fedavg_as_long_as_everybody_comes_for_the_first_time():
    first, second = cohort((0, 1), "blocks"), cohort((2, 3, 4), "blocks")
    fedavg = process("fedavg", "blocks")
    assert_close(after(process("moon"), first, second), after(fedavg, first, second))
    again = [first, second, first]
    assert_differ(after(process("moon"), *again), after(fedavg, *again))


def test_fedmlb_of_the_local_loss_alone_is_fedavg_to_the_bit():
    data = some_rounds("blocks")
    alone = process(
        "fedmlb",
        hybrid_loss_weight=0.0,
        distillation_weight=0.0,
        gradient_clip_norm=None,
    )
    fedavg = process("fedavg", "blocks")
    assert_same_bits(alone, fedavg, *data)
    assert_differ(after(process("fedmlb"), *data), after(fedavg, *data))


def test_fedmlbs_first_step_moves_a_block_by_the_losses_that_it_has_a_part_in():
    # At the server's weights hybrid models are the local one, and nothing diverges:
    # of two hybrid losses both depend on the first block, one on the second, and none
    # on the third.
    data = one_step_each(model="blocks")
    start = block_problems.initial_vector()
    step = start - after(process("fedavg", "blocks"), data)
    sizes = [weight.size for weight in block_problems.initial_weights()]
    factors = np.repeat([2.0, 1.5, 1.0], np.add.reduceat(sizes, [0, 2, 4]))
    assert_close(start - after(process("fedmlb"), data), factors * step)


@pytest.mark.parametrize("changes", [{}, {"control_variate": "full_gradient"}])
def test_scaffold_is_uniform_fedavg_in_the_first_round_only(changes):
    data = cohort()
    scaffold = process("scaffold", **changes)
    fedavg = process("fedavg", client_weighting=UNIFORM)
    assert_close(after(scaffold, data), after(fedavg, data))
    assert_differ(after(scaffold, data, data), after(fedavg, data, data))


def test_scaffold_of_one_client_is_local_sgd():
    data = cohort([0])
    expected = problems.initial_vector()
    for _ in range(3):
        expected = trained(0, expected)
    assert_close(after(process("scaffold", num_clients=1), data, data, data), expected)


def means_over_all(name):
    """The mean of all clients' rows, and what the server holds, round after round."""
    training = Training(process(name), NUM_CLIENTS)
    for data in [*some_rounds(), cohort() | invalid_clients(), *some_rounds()]:
        training.round(data)
        rows = [training.row(k) for k in range(NUM_CLIENTS)]
        state = training.state
        mean = state.client_work.shared if name == "scaffold" else state.finalizer
        yield np.mean(rows, axis=0), vector(mean)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_the_server_holds_the_mean_of_what_all_clients_remember(name):
    norms = []
    for mean, held in means_over_all(name):
        assert_close(held, mean)
        norms.append(np.linalg.norm(mean))
    assert min(norms) > 0.02 and np.max(np.abs(np.diff(norms))) > 5e-3


def test_scaffold_of_one_full_batch_step_and_all_clients_is_fedsgd():
    everybody = one_step_each(range(NUM_CLIENTS))
    scaffold = run(process("scaffold"), NUM_CLIENTS, everybody, everybody)
    expected = problems.initial_vector()
    for _ in range(2):
        gradients = [client.gradient(expected) for client in CLIENTS]
        expected = expected - RATE * np.mean(gradients, axis=0)
    assert_close(scaffold.weights, expected)
    # Controls are the gradients at the weights before the round.
    assert_close(scaffold.row(3), gradients[3])


def test_feddyn_of_strength_zero_is_uniform_fedavg_to_the_bit():
    data = some_rounds()
    still = process("feddyn", dynamic_regularization=0.0)
    assert_same_bits(still, process("fedavg", client_weighting=UNIFORM), *data)


def test_feddyn_adapts_nothing_to_clients_of_one_size():
    clients = [problems.clients([5] * NUM_CLIENTS)[k] for k in range(NUM_CLIENTS)]
    data = [
        {k: clients[k].batches(BATCH, EPOCHS) for k in numbers}
        for numbers in ((0, 1, 2), (3, 1))
    ]
    adaptive = process("feddyn", mean_examples=5.0 * EPOCHS)
    assert_same_bits(adaptive, process("feddyn"), *data)


@pytest.mark.parametrize("size", [2, NUM_CLIENTS])
def test_feddyns_first_round_is_fedprox_with_a_larger_server_rate(size):
    start = problems.initial_vector()
    prox = [
        trained(k, start, correction=lambda y: 0.5 * (y - start)) for k in range(size)
    ]
    expected = start - (1 + size / NUM_CLIENTS) * (start - np.mean(prox, axis=0))
    assert_close(after(process("feddyn"), cohort(range(size))), expected)


def test_mifa_of_all_clients_is_uniform_fedavg():
    data = cohort(range(NUM_CLIENTS))
    fedavg = process("fedavg", client_weighting=UNIFORM)
    assert_close(after(process("mifa"), data, data), after(fedavg, data, data))
    some = some_rounds()
    assert_differ(after(process("mifa"), *some), after(fedavg, *some))


def test_moons_client_alone_sets_the_server_model():
    # Other algorithms' are in the tests against NumPy.
    alone = cohort([0], "blocks")
    assert_close(
        after(process("moon"), alone), after(process("fedavg", "blocks"), alone)
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_order_of_clients_does_not_matter(name):
    in_order = some_rounds(model_of(name))
    permuted = [dict(reversed(data.items())) for data in in_order]
    assert_close(after(process(name), *permuted), after(process(name), *in_order))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_invalid_clients_are_as_good_as_absent(name):
    model = model_of(name)
    data, bad = cohort(model=model), invalid_clients(model)
    mixed = {4: bad[4], 0: data[0], 5: bad[5], **data, 6: bad[6]}
    training = Training(process(name), NUM_CLIENTS)
    for _ in range(2):
        output = training.round(mixed)
        measured = output.metrics["client_work"]
        assert measured["num_non_finite_clients"] == 2
        assert measured["num_empty_clients"] == 1
        assert np.isfinite(measured["train"]["loss"])
    assert_close(training.weights, after(process(name), data, data))
    if training.memory is not None:
        rows = [training.row(k) for k in range(NUM_CLIENTS)]
        assert all(np.any(row) for row in rows[:4]) and not np.any(rows[4:])


def assert_changes_nothing(process, first, rejected):
    """Asserts that a round is rejected, and the next one goes on without it."""
    training = run(process, NUM_CLIENTS, first)
    before = training.state
    rows = training.memory and [training.row(k) for k in range(NUM_CLIENTS)]
    output = training.round(rejected)
    assert output.metrics["finalizer"]["num_rejected_rounds"] == 1
    for part in ("global_model_weights", "aggregator", "finalizer"):
        np.testing.assert_array_equal(
            vector(getattr(training.state, part)), vector(getattr(before, part))
        )
    # The client work counts the round.
    changed = vector(training.state.client_work) - vector(before.client_work)
    assert changed[0] == 1 and not np.any(changed[1:])
    if rows:
        np.testing.assert_array_equal(
            [training.row(k) for k in range(NUM_CLIENTS)], rows
        )
    training.round(first)
    np.testing.assert_array_equal(training.weights, after(process, first, first))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_without_valid_clients_changes_nothing(name):
    model = model_of(name)
    bad = invalid_clients(model)
    # Of clients who have been valid, so that there is something to forget.
    bad = {k: bad[4 + k] for k in range(3)}
    assert_changes_nothing(process(name), cohort(model=model), bad)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "mifa", "gradma_s"])
def test_a_round_that_overflows_at_the_server_changes_nothing(name):
    # An update of 1e159 is finite, and its square is not.
    x = np.full((1, problems.NUM_FEATURES), 1e80)
    huge = problems.Client(x, np.ones(1)).batches()
    assert_changes_nothing(process(name), cohort(), {0: huge, 1: cohort()[1]})
