"""Rounds of algorithms that remember against plain NumPy in float64.

SCAFFOLD, FedDyn, MIFA, GradMA's family, MOON and FedMLB. Clients of unequal sizes come
and go.
"""

import functools

import numpy as np
import pytest

from tests.testing import block_problems, gradma_reference, problems
from tests.testing.remembering_cohorts import Training, vector
from tests.testing.remembering_processes import (
    BATCH,
    BLOCK_CLIENTS,
    CLIENTS,
    EPOCHS,
    NUM_CLIENTS,
    RATE,
    cohort,
    process,
)

START = problems.initial_vector()
SIZES = [len(client.y) for client in CLIENTS]
COHORTS = ((0, 1, 2), (3, 1), (0, 3, 6, 2), (1, 5))


def assert_close(found, expected, rtol=1e-8, atol=1e-9):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def rounds(process, cohorts=COHORTS, model="linear"):
    """A process in training after each round, and the round's output."""
    training = Training(process, NUM_CLIENTS)
    for numbers in cohorts:
        output = training.round(cohort(numbers, model))
        yield training, output


def trained(number, start, rate=RATE, correction=lambda y: 0.0):
    """A client's weights after its local steps."""
    return CLIENTS[number].local_sgd(start, rate, BATCH, EPOCHS, correction)[0]


def num_steps(number):
    return EPOCHS * -(-SIZES[number] // BATCH)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"control_variate": "full_gradient"},
        {"client_learning_rate_decay": 0.5},
    ],
)
def test_scaffold(changes):
    w, mean, own = START, np.zeros(6), np.zeros([NUM_CLIENTS, 6])
    decay = changes.get("client_learning_rate_decay", 1.0)
    for number, (training, _) in enumerate(rounds(process("scaffold", **changes))):
        taking_part, rate, deltas, new = COHORTS[number], RATE * decay**number, [], {}
        for k in taking_part:
            y = trained(k, w, rate, lambda _, shift=mean - own[k]: shift)
            deltas.append(w - y)
            new[k] = own[k] - mean + (w - y) / (num_steps(k) * rate)
            if "control_variate" in changes:
                new[k] = CLIENTS[k].gradient(w)
        mean = mean + sum(new[k] - own[k] for k in taking_part) / NUM_CLIENTS
        for k in taking_part:
            own[k] = new[k]
        w = w - np.mean(deltas, axis=0)
        assert_close(training.weights, w)
        assert_close(vector(training.state.client_work.shared), mean)
        assert_close([training.row(k) for k in range(NUM_CLIENTS)], own)


@pytest.mark.parametrize("adaptive", [False, True])
def test_feddyn(adaptive):
    w, mean, own, alpha = START, np.zeros(6), np.zeros([NUM_CLIENTS, 6]), 0.5
    strengths = np.mean(SIZES) / SIZES if adaptive else np.ones(NUM_CLIENTS)
    changes = {"mean_examples": EPOCHS * np.mean(SIZES)} if adaptive else {}
    for number, (training, output) in enumerate(rounds(process("feddyn", **changes))):

        def correction(y, k, w=w):
            return strengths[k] * (alpha * (y - w) - own[k])

        models = {
            k: trained(k, w, correction=functools.partial(correction, k=k))
            for k in COHORTS[number]
        }
        for k, y in models.items():
            own[k] = own[k] - alpha * (y - w)
        mean = mean + alpha / NUM_CLIENTS * sum(w - y for y in models.values())
        before, w = w, np.mean(list(models.values()), axis=0) - mean / alpha
        assert_close(training.weights, w)
        assert_close(vector(training.state.finalizer), mean)
        assert_close([training.row(k) for k in range(NUM_CLIENTS)], own)
        measured = output.metrics["finalizer"]["update_norm"]
        assert measured == pytest.approx(np.linalg.norm(w - before), rel=1e-6)


def scalar_clients():
    """F_1 = (w - 1)^2 / 2 and F_2 = (w - 3)^2 / 2 in the bias; two local steps."""
    nothing = np.zeros((1, problems.NUM_FEATURES))
    return {
        k: problems.Client(nothing, np.array([target])).batches(1, epochs=2)
        for k, target in enumerate((1.0, 3.0))
    }


GOLDEN = {  # The server's vector, the clients' ones, w; of two rounds.
    "scaffold": [
        (-1.9, (-0.95, -2.85), 0.38),
        (-1.539, (-0.5415, -2.5365), 0.6878),
    ],
    "feddyn": [
        (-0.185, (-0.0925, -0.2775), 0.74),
        (-0.2844375, None, 1.50775),
    ],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_scalars(name):
    training = Training(process(name, num_clients=2), 2)
    training.set_weights(np.zeros(5), np.float64(0))
    for mean, own, w in GOLDEN[name]:
        training.round(scalar_clients())
        held = training.state.client_work.shared
        if name == "feddyn":
            held = training.state.finalizer
        assert_close(vector(held), [0, 0, 0, 0, 0, mean], rtol=1e-6)
        assert_close(training.weights, [0, 0, 0, 0, 0, w], rtol=1e-6)
        if own is not None:
            assert_close([training.row(k)[-1] for k in range(2)], own, rtol=1e-6)


def minimum_of_all():
    """Where the mean of all clients' losses, each client's alike, is smallest."""
    features = [np.column_stack([c.x, np.ones(len(c.y))]) for c in CLIENTS]
    hessian = sum(f.T @ f / len(f) for f in features)
    target = sum(f.T @ c.y / len(f) for f, c in zip(features, CLIENTS, strict=True))
    return np.linalg.solve(hessian, target)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_the_minimum_of_all_is_where_it_stands_still(name):
    optimum = minimum_of_all()
    gradients = np.array([client.gradient(optimum) for client in CLIENTS])
    training = Training(process(name), NUM_CLIENTS)
    training.set_weights(optimum[:-1], optimum[-1])
    training.memory.update(
        {
            "client_index": np.arange(NUM_CLIENTS),
            "accepted": np.full(NUM_CLIENTS, True),
            "row": (gradients[:, :-1], gradients[:, -1]),
        }
    )
    # Steps of whole gradients, of some clients.
    training.round(cohort((0, 3, 5), batch_size=None, epochs=4))
    assert_close(training.weights, optimum)
    assert_close([training.row(k) for k in range(NUM_CLIENTS)], gradients)
    assert np.max(np.abs(gradients)) > 0.1


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_mifa(decay):
    changes = {} if decay == 1.0 else {"client_learning_rate_decay": decay}
    w, table = START, np.zeros([NUM_CLIENTS, 6])
    for number, (training, output) in enumerate(rounds(process("mifa", **changes))):
        for k in COHORTS[number]:
            table[k] = w - trained(k, w, RATE * decay**number)
        w = w - np.mean(table, axis=0)
        assert_close(training.weights, w)
        # As if the old updates had been made at the rate of today.
        table *= decay
    seen = set().union(*COHORTS)
    assert output.metrics["aggregator"]["num_seen_clients"] == len(seen)


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


def test_gradma_s():
    server = gradma_reference.Server(NUM_CLIENTS, START)
    num_active = []
    for number, (training, output) in enumerate(rounds(process("gradma_s"))):
        taking_part = COHORTS[number]
        momentum = server.round(
            {k: server.w - trained(k, server.w) for k in taking_part},
            [SIZES[k] for k in taking_part],
        )
        assert_close(training.weights, server.w)
        measured = output.metrics["finalizer"]
        norms = np.linalg.norm(momentum), np.linalg.norm(server.corrected)
        assert measured["base_update_norm"] == pytest.approx(norms[0], rel=1e-6)
        assert measured["update_norm"] == pytest.approx(norms[1], rel=1e-6)
        assert measured["num_memory_rows"] == len(server.rows)
        assert measured["qp_fallbacks"] == 0
        num_active.append(measured["num_active_rows"])
    assert max(num_active) > 0


def test_gradma_w():
    w = START
    for number, (training, _) in enumerate(rounds(process("gradma_w"))):
        taking_part = COHORTS[number]
        models = [corrected_sgd(k, w, w) for k in taking_part]
        plain = [trained(k, w) for k in taking_part]
        w = problems.mean(models, [SIZES[k] for k in taking_part])
        assert_close(training.weights, w)
        assert np.max(np.abs(np.subtract(models, plain))) > 1e-2


def test_gradma_w_where_the_gradient_at_the_previous_weights_binds():
    training = Training(process("gradma_w"), NUM_CLIENTS)
    training.round(cohort([2], batch_size=1, epochs=4))
    assert_close(training.weights, corrected_sgd(2, START, START, batch=1, epochs=4))
    # Not the server's weights all along.
    server = corrected_sgd(2, START, START, batch=1, epochs=4, carry=False)
    assert np.max(np.abs(training.weights - server)) > 1e-2


def test_gradma_with_few_rows_tensor_by_tensor_and_clients_that_remember():
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
        assert_close(training.weights, server.w)
        assert output.metrics["finalizer"]["num_memory_rows"] == 3
        owners = np.asarray(training.state.finalizer.ownership.owners)
        assert set(owners.tolist()) == set(server.rows)
    assert len(evicted) >= 2
    for k in range(NUM_CLIENTS):
        row = training.memory.row(k)
        assert row["seen"] == (k in last)
        assert_close(vector(row["weights"]), last.get(k, np.zeros(6)))


def test_gradma_w_stands_still_after_its_first_step_in_one_dimension():
    # The drift is then all that there is, and every gradient opposes it.
    client = problems.Client(np.zeros((1, problems.NUM_FEATURES)), np.ones(1))
    training = Training(process("gradma_w"), 1)
    training.set_weights(np.zeros(5), np.float64(0))
    training.round({0: client.batches(1, epochs=5)})
    assert_close(training.weights, [0, 0, 0, 0, 0, RATE], atol=1e-12)


def block_rounds(process, objective, clip=np.inf):
    """Asserts that clients' steps are those of NumPy.

    Args:
      process: The process.
      objective: `(the client's last weights or the server's, the server's, x, labels)
        -> (weights -> what its steps descend)`.
      clip: The largest norm of a gradient.

    Returns:
      The process in training, each client's last weights, and all gradients' norms.
    """
    w, last, norms = block_problems.initial_vector(), {}, []

    def step(previous, server, y, x, labels):
        gradient = block_problems.gradient(objective(previous, server, x, labels), y)
        norms.append(np.linalg.norm(gradient))
        return gradient * min(1.0, clip / norms[-1])

    for number, (training, _) in enumerate(rounds(process, model="blocks")):
        taking_part, models = COHORTS[number], {}
        for k in taking_part:
            models[k] = BLOCK_CLIENTS[k].local_sgd(
                w, RATE, BATCH, EPOCHS, functools.partial(step, last.get(k, w), w)
            )
        last |= models
        w = problems.mean(list(models.values()), [SIZES[k] for k in taking_part])
        assert_close(training.weights, w)
    return training, last, norms


def cosines(left, right):
    """Along the last axis; analytic, so without absolute values."""
    squares = np.sum(left**2, axis=-1) * np.sum(right**2, axis=-1)
    return np.sum(left * right, axis=-1) / np.sqrt(squares)


def test_moon():
    temperature, strength = 0.5, 2.0

    def objective(previous, server, x, labels):
        near, far = (block_problems.levels(at, x)[1] for at in (server, previous))

        def value(weights):
            _, features, logits = block_problems.levels(weights, x)
            towards = np.exp(cosines(features, near) / temperature)
            away = np.exp(cosines(features, far) / temperature)
            contrast = -np.log(towards / (towards + away))
            loss = block_problems.cross_entropy(logits, labels)
            return loss + strength * np.mean(contrast)

        return value

    training, last, _ = block_rounds(process("moon"), objective)
    for k in range(NUM_CLIENTS):
        row = training.memory.row(k)
        assert row["seen"] == (k in last)
        assert_close(vector(row["weights"]), last.get(k, np.zeros(51)))


def test_fedmlb():
    def objective(previous, server, x, labels):
        del previous

        def value(weights):
            *features, logits = block_problems.levels(weights, x)
            hybrids = [
                block_problems.levels(server, features[start - 1], start)[-1]
                for start in (1, 2)
            ]
            local = block_problems.log_softmax(logits / 1.5)
            targets = [block_problems.log_softmax(h / 1.5) for h in hybrids]
            divergences = [
                np.mean(np.sum(np.exp(t) * (t - local), axis=-1)) for t in targets
            ]
            losses = [block_problems.cross_entropy(h, labels) for h in hybrids]
            return (
                0.75 * block_problems.cross_entropy(logits, labels)
                + 1.25 * sum(losses) / 2
                + 2.0 * sum(divergences) / 2
            )

        return value

    fed_mlb = process(
        "fedmlb",
        local_loss_weight=0.75,
        hybrid_loss_weight=1.25,
        distillation_weight=2.0,
        distillation_temperature=1.5,
        gradient_clip_norm=1.5,
    )
    *_, norms = block_rounds(fed_mlb, objective, clip=1.5)
    # Some of them were clipped.
    assert min(norms) < 1.4 and max(norms) > 1.6
