"""GradMA and its halves S and W: NumPy's rounds, FedAvg and FedAvgM at their limits."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import (
    gradma_reference,
    problems,
    remembering_identities,
    remembering_rounds,
)
from tests.testing.remembering_cohorts import Training, vector
from tests.testing.remembering_identities import (
    after,
    assert_differ,
    assert_same_bits,
    one_step_each,
)
from tests.testing.remembering_processes import (
    BATCH,
    CLIENTS,
    EPOCHS,
    NUM_CLIENTS,
    RATE,
    cohort,
    process,
    some_rounds,
)
from tests.testing.remembering_rounds import COHORTS, SIZES, rounds, trained

START = problems.initial_vector()


def corrected_sgd(
    number,
    start,
    previous,
    parts=(slice(None),),
    batch=BATCH,
    epochs=EPOCHS,
    carry=True,
):
    """A client's weights after steps of GradMA-W."""
    client, y = CLIENTS[number], start
    for first in list(range(0, SIZES[number], batch)) * epochs:
        rows = slice(first, first + batch)
        gradients = [client.gradient(at, rows) for at in (y, previous, start)]
        step = gradma_reference.project(
            gradients[0], [*gradients[1:], y - start], parts
        )
        previous, y = y if carry else previous, y - RATE * step
    return y


def test_gradma_ss_rounds_are_numpys():
    server = gradma_reference.Server(NUM_CLIENTS, START)
    num_active = []
    for number, (training, output) in enumerate(rounds(process("gradma_s"))):
        taking_part = COHORTS[number]
        momentum = server.round(
            {k: server.w - trained(k, server.w) for k in taking_part},
            [SIZES[k] for k in taking_part],
        )
        remembering_rounds.assert_close(training.weights, server.w)
        measured = output.metrics["finalizer"]
        norms = np.linalg.norm(momentum), np.linalg.norm(server.corrected)
        assert measured["base_update_norm"] == pytest.approx(norms[0], rel=1e-6)
        assert measured["update_norm"] == pytest.approx(norms[1], rel=1e-6)
        assert measured["num_memory_rows"] == len(server.rows)
        assert measured["qp_fallbacks"] == 0
        num_active.append(measured["num_active_rows"])
    assert max(num_active) > 0


def test_gradma_ws_rounds_are_numpys():
    w = START
    for number, (training, _) in enumerate(rounds(process("gradma_w"))):
        taking_part = COHORTS[number]
        models = [corrected_sgd(k, w, w) for k in taking_part]
        plain = [trained(k, w) for k in taking_part]
        w = problems.mean(models, [SIZES[k] for k in taking_part])
        remembering_rounds.assert_close(training.weights, w)
        assert np.max(np.abs(np.subtract(models, plain))) > 1e-2


def test_gradma_w_heeds_the_gradient_at_the_previous_weights():
    training = Training(process("gradma_w"), NUM_CLIENTS)
    training.round(cohort([2], batch_size=1, epochs=4))
    remembering_rounds.assert_close(
        training.weights, corrected_sgd(2, START, START, batch=1, epochs=4)
    )
    # Not the server's weights all along.
    server = corrected_sgd(2, START, START, batch=1, epochs=4, carry=False)
    assert np.max(np.abs(training.weights - server)) > 1e-2


def test_gradmas_rounds_are_numpys_with_few_rows_tensor_by_tensor_and_clients_that_remember():
    parts = [slice(0, 5), slice(5, 6)]
    changes = {
        "memory_size": 3,
        "qp_scope": "per_tensor",
        "persist_previous": True,
        "server_momentum": 0.25,
        "memory_decay": 0.75,
    }
    server = gradma_reference.Server(
        3, START, momentum=0.25, memory_decay=0.75, parts=parts
    )
    last, evicted = {}, set()
    for number, (training, output) in enumerate(rounds(process("gradma", **changes))):
        taking_part, w, before = COHORTS[number], server.w, set(server.rows)
        models = {k: corrected_sgd(k, w, last.get(k, w), parts) for k in taking_part}
        last |= models
        server.round(
            {k: w - y for k, y in models.items()}, [SIZES[k] for k in taking_part]
        )
        evicted |= before - set(server.rows)
        remembering_rounds.assert_close(training.weights, server.w)
        assert output.metrics["finalizer"]["num_memory_rows"] == 3
        owners = np.asarray(training.state.finalizer.ownership.owners)
        assert set(owners.tolist()) == set(server.rows)
    assert len(evicted) >= 2
    for k in range(NUM_CLIENTS):
        row = training.memory.row(k)
        assert row["seen"] == (k in last)
        remembering_rounds.assert_close(
            vector(row["weights"]), last.get(k, np.zeros(6))
        )


def test_gradma_w_stands_still_after_its_first_step_in_one_dimension():
    # The drift is then all that there is, and every gradient opposes it.
    client = problems.Client(np.zeros((1, problems.NUM_FEATURES)), np.ones(1))
    training = Training(process("gradma_w"), 1)
    training.set_weights(np.zeros(5), np.float64(0))
    training.round({0: client.batches(1, epochs=5)})
    remembering_rounds.assert_close(training.weights, [0, 0, 0, 0, 0, RATE], atol=1e-12)


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
    remembering_identities.assert_close(
        after(gradma, *data), after(process("gradma_w"), *data)
    )


def test_gradma_without_memory_is_gradma_w_with_momentum_at_the_server():
    data = some_rounds()
    gradma = process(
        "gradma", memory_size=0, server_momentum=0.5, server_learning_rate=0.8
    )
    heavy_ball = tff.learning.optimizers.build_sgdm(0.8, momentum=0.5)
    gradma_w = process("gradma_w", server_optimizer_fn=heavy_ball)
    remembering_identities.assert_close(after(gradma, *data), after(gradma_w, *data))
    assert_differ(after(gradma, *data), after(process("gradma_w"), *data))


@pytest.mark.parametrize("name", ["gradma_s", "gradma"])
def test_with_a_memory_for_all_clients_it_is_without_reduction_to_the_bit(name):
    data = some_rounds()
    assert_same_bits(process(name, memory_size=NUM_CLIENTS), process(name), *data)


def test_gradma_s_adds_momentum_to_equal_updates():
    # Of losses that are linear in the weights, the same wherever clients start.
    client = problems.clients(sizes=(6,))[0]
    gradma_s = tff_algos.build_gradma_s(
        problems.linear_loss_model(),
        tff.learning.optimizers.build_sgdm(0.1),
        num_clients=3,
        server_learning_rate=0.5,
        server_momentum=0.25,
    )
    training = Training(gradma_s, 3)
    training.round(dict.fromkeys((0, 1), client.batches(2)))
    update = (START - training.weights) / 0.5
    training.round(dict.fromkeys((1, 2), client.batches(2)))
    remembering_identities.assert_close(
        training.weights, START - 0.5 * (2 + 0.25) * update
    )
    assert np.linalg.norm(update) > 0.1


@pytest.mark.parametrize("size", [NUM_CLIENTS, NUM_CLIENTS + 3])
def test_a_memory_for_all_clients_is_one_without_reduction(size):
    def rows(**kwargs):
        state = process("gradma_s", **kwargs).initialize()
        return tf.nest.flatten(state.finalizer.rows)[0].shape[0]

    assert rows(memory_size=size) == rows() == NUM_CLIENTS
    assert rows(memory_size=6) == 6
