"""AFL: NumPy's mixtures and rounds, the models that it returns, bad numbers."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import fair_processes, fair_rounds, float32_processes, problems
from tests.testing.fair_processes import assert_differ, one_step_each
from tests.testing.fair_rounds import (
    BATCH,
    RATE,
    SERVER_RATE,
    batch_losses,
    build,
    delta_of,
    mean_loss,
)
from tests.testing.float32_processes import built
from tests.testing.numbered_clients import numbered
from tests.testing.problems import f32
from tests.testing.remembering_processes import linear_model_with_statistics

START = problems.initial_vector()
GAMMA, NUM_CLIENTS = 0.1, 5
UNIFORM = tff.learning.ClientWeighting.UNIFORM


@functools.cache
def afl(returned_model="average", afl_loss="examples"):
    return build(
        tff_algos.build_agnostic_federated_learning,
        afl_loss=afl_loss,
        num_clients=NUM_CLIENTS,
        mixture_learning_rate=GAMMA,
        returned_model=returned_model,
    )


def test_the_servers_rate_can_be_read_and_set():
    process = afl()
    state = process.initialize()
    hparams = process.get_hparams(state)
    assert hparams["finalizer"]["learning_rate"] == np.float32(SERVER_RATE)
    hparams["finalizer"]["learning_rate"] = np.float32(0.0)
    state = process.set_hparams(state, hparams)
    assert process.get_hparams(state)["finalizer"]["learning_rate"] == 0.0


def on_simplex(point, total):
    """The nearest point that is nowhere negative and has this sum."""
    descending = np.sort(point)[::-1]
    shifts = (np.cumsum(descending) - total) / np.arange(1, len(point) + 1)
    return np.maximum(point - shifts[descending > shifts][-1], 0)


def afl_round(w, mixture, taking_part):
    """A round in which clients of these numbers count."""
    chosen = [fair_rounds.CLIENTS[number] for number in taking_part]
    own = mixture[taking_part]
    step = problems.mean([delta_of(client, w) for client in chosen], own)
    losses = np.array([mean_loss(client, w, rate=f32(RATE)) for client in chosen])
    raised = mixture.copy()
    raised[taking_part] = on_simplex(own + GAMMA * losses, own.sum())
    return w - SERVER_RATE * step, raised, losses


def afl_rounds(cohorts):
    """Weights and mixtures after every round of NumPy's AFL."""
    w, mixture, trace = START, np.full(NUM_CLIENTS, 1 / NUM_CLIENTS), []
    for taking_part in cohorts:
        w, mixture, losses = afl_round(w, mixture, taking_part)
        trace.append((w, mixture, losses))
    return trace


def run_afl(process, cohorts):
    """The states and metrics after every round of AFL."""
    state, outputs = process.initialize(), []
    for clients in cohorts:
        outputs.append(process.next(state, clients))
        state = outputs[-1].state
    return outputs


def test_afls_rounds_are_numpys_with_clients_that_come_and_go():
    taking_part = [[0, 1, 2, 3], [1, 3], [3, 0, 2]]
    cohorts = [
        numbered(fair_rounds.cohort([fair_rounds.CLIENTS[k] for k in numbers]), numbers)
        for numbers in taking_part
    ]
    outputs = run_afl(afl("last"), cohorts)
    trace = afl_rounds(taking_part)
    for output, (w, mixture, losses) in zip(outputs, trace, strict=True):
        fair_rounds.assert_close(problems.vector_of(afl("last"), output.state), w)
        fair_rounds.assert_close(output.state.client_work.mixture, mixture)
        measured = output.metrics["client_work"]
        assert measured["lambda_min"] == pytest.approx(mixture.min(), abs=1e-6)
        assert measured["lambda_max"] == pytest.approx(mixture.max(), rel=1e-6)
        assert measured["max_loss"] == pytest.approx(losses.max(), rel=1e-6)
    mixtures = [mixture for _, mixture, _ in trace]
    # The fifth client never comes, the first and the third not to the second round.
    assert all(mixture[4] == 0.2 for mixture in mixtures)
    np.testing.assert_array_equal(mixtures[1][[0, 2]], mixtures[0][[0, 2]])
    assert np.max(np.abs(mixtures[1] - mixtures[0])) > 0.1


def test_afls_loss_is_by_default_the_mean_over_its_steps():
    w, mixture = START, np.full(NUM_CLIENTS, 1 / NUM_CLIENTS)
    process = afl("last", "batches")
    for output in run_afl(process, [numbered(fair_rounds.cohort())] * 3):
        losses = np.array(
            [
                batch_losses(client, w, f32(RATE))[0].mean()
                for client in fair_rounds.CLIENTS
            ]
        )
        step = problems.mean(
            [delta_of(client, w) for client in fair_rounds.CLIENTS], mixture[:4]
        )
        w = w - SERVER_RATE * step
        mixture[:4] = on_simplex(mixture[:4] + GAMMA * losses, mixture[:4].sum())
        fair_rounds.assert_close(problems.vector_of(process, output.state), w)
        fair_rounds.assert_close(output.state.client_work.mixture, mixture)


def test_afl_as_published_takes_one_gradient_of_one_batch():
    process = build(
        tff_algos.build_agnostic_federated_learning,
        num_clients=4,
        mixture_learning_rate=GAMMA,
        afl_mode="batch",
        returned_model="last",
    )
    firsts = [
        problems.Client(client.x[:BATCH], client.y[:BATCH])
        for client in fair_rounds.CLIENTS
    ]
    w, mixture = START, np.full(4, 0.25)
    for output in run_afl(process, [numbered(fair_rounds.cohort())] * 3):
        gradients = np.array([first.gradient(w) for first in firsts])
        residuals = [first.x @ w[:-1] + w[-1] - first.y for first in firsts]
        losses = np.array([np.mean(residual**2) / 2 for residual in residuals])
        w = w - SERVER_RATE * f32(RATE) * mixture @ gradients
        mixture = on_simplex(mixture + GAMMA * losses, 1.0)
        fair_rounds.assert_close(problems.vector_of(process, output.state), w)
        fair_rounds.assert_close(output.state.client_work.mixture, mixture)
    assert np.max(np.abs(mixture - 0.25)) > 0.1


def test_afl_returns_the_mean_of_the_models_of_all_rounds():
    everyone = [0, 1, 2, 3]
    cohorts = [numbered(fair_rounds.cohort())] * 3
    trace = afl_rounds([everyone] * 3)
    models = [w for w, _, _ in trace]
    outputs = run_afl(afl(), cohorts)
    for number, output in enumerate(outputs, start=1):
        average = np.mean(models[:number], axis=0)
        fair_rounds.assert_close(problems.vector_of(afl(), output.state), average)
    # It trains on from the last one.
    last = outputs[-1].state.global_model_weights.trainable
    fair_rounds.assert_close(np.append(*last), models[-1])
    assert np.max(np.abs(models[-1] - average)) > 0.1


def test_afl_averages_the_statistics_of_its_rounds_as_well():
    process = tff_algos.build_agnostic_federated_learning(
        linear_model_with_statistics(),
        tff.learning.optimizers.build_sgdm(0.1),
        num_clients=NUM_CLIENTS,
    )
    outputs = run_afl(process, [numbered(fair_rounds.cohort())] * 2)
    last = [o.state.global_model_weights.non_trainable[0] for o in outputs]
    found = [process.get_model_weights(o.state).non_trainable[0] for o in outputs]
    assert np.max(np.abs(last[0])) > 0.01
    fair_rounds.assert_close(found[0], last[0])
    fair_rounds.assert_close(found[1], np.mean(last, axis=0))


def test_afl_leaves_the_mixture_of_invalid_clients_alone():
    broken = problems.Client(np.full((3, problems.NUM_FEATURES), np.nan), np.ones(3))
    empty = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    clients = [fair_rounds.CLIENTS[0], broken, fair_rounds.CLIENTS[2], empty]
    outputs = run_afl(
        afl("last"),
        [numbered(fair_rounds.cohort()), numbered(fair_rounds.cohort(clients))],
    )
    trace = afl_rounds([[0, 1, 2, 3], [0, 2]])
    fair_rounds.assert_close(
        problems.vector_of(afl("last"), outputs[-1].state), trace[-1][0]
    )
    first, second = (output.state.client_work.mixture for output in outputs)
    fair_rounds.assert_close(second, trace[-1][1])
    np.testing.assert_array_equal(second[[1, 3, 4]], first[[1, 3, 4]])
    measured = outputs[-1].metrics["client_work"]
    assert measured["num_non_finite_clients"] == 1
    assert measured["num_empty_clients"] == 1
    assert measured["max_loss"] == pytest.approx(trace[-1][2].max(), rel=1e-6)


@pytest.mark.parametrize("returned_model", ["average", "last"])
def test_afl_trains_on_from_weights_that_are_set(returned_model):
    process, data = afl(returned_model), numbered(fair_rounds.cohort())
    trained = run_afl(process, [data, data])[-1].state
    w = np.arange(6, dtype=np.float64)
    weights = tff.learning.models.ModelWeights((w[:-1], w[-1]), ())
    state = process.set_model_weights(trained, weights)
    np.testing.assert_array_equal(problems.vector_of(process, state), w)
    # What clients weigh is no part of the model, and the mean begins anew.
    mixture = np.asarray(state.client_work.mixture)
    np.testing.assert_array_equal(mixture, trained.client_work.mixture)
    expected, _, _ = afl_round(w, mixture, [0, 1, 2, 3])
    after = process.next(state, data).state
    fair_rounds.assert_close(problems.vector_of(process, after), expected)


def test_afl_with_mixture_rate_zero_is_uniform_fedavg():
    data = fair_processes.cohort()
    still = fair_processes.process("afl", mixture_learning_rate=0.0)
    uniform = fair_processes.after(
        fair_processes.process("fedavg", client_weighting=UNIFORM), data, data
    )
    fair_processes.assert_close(
        fair_processes.after(still, numbered(data), numbered(data)), uniform
    )
    assert_differ(
        fair_processes.after(
            fair_processes.process("afl"), numbered(data), numbered(data)
        ),
        uniform,
    )


def test_afl_of_one_batch_with_mixture_rate_zero_is_uniform_fedsgd_of_that_batch():
    data = fair_processes.cohort()
    firsts = [batches.take(1) for batches in data]
    still = fair_processes.process("afl", afl_mode="batch", mixture_learning_rate=0.0)
    # The rates of AFL's clients and of its server, 0.1 and 1, in one.
    fedsgd = fair_processes.process("fedsgd", server_rate=0.1, client_weighting=UNIFORM)
    uniform = fair_processes.after(fedsgd, firsts, firsts)
    fair_processes.assert_close(
        fair_processes.after(still, numbered(data), numbered(data)), uniform
    )


def test_afls_mixture_concentrates_on_the_worst_client_as_its_rate_grows():
    losses = [mean_loss(client, START) for client in fair_processes.CLIENTS]
    worst, shares = np.argmax(losses), [1 / 7]
    # The others of the 7 are away, and keep their sevenths.
    for process in (
        fair_processes.process("afl"),
        fair_processes.process("afl", mixture_learning_rate=10.0),
    ):
        _, output = problems.run(process, numbered(one_step_each()))
        mixture = output.state.client_work.mixture
        shares.append(mixture[worst])
        assert np.argmax(mixture) == worst
    assert shares[0] < shares[1] < shares[2]
    fair_rounds.assert_close(mixture[:4], 4 / 7 * np.eye(4)[worst])


def test_afl_with_equal_losses_keeps_its_mixture():
    alike = numbered(one_step_each([fair_processes.CLIENTS[0]] * 4))
    _, output = problems.run(fair_processes.process("afl"), alike, alike)
    np.testing.assert_allclose(output.state.client_work.mixture, [1 / 7] * 7)


def test_afls_state_holds_the_weights_of_all_clients():
    state = built("afl").initialize.type_signature.result.member
    assert state.client_work.mixture.is_equivalent_to(tff.TensorType(np.float64, [3]))
    assert state.finalizer.average.is_equivalent_to(state.global_model_weights)
    metrics = built("afl").next.type_signature.result.metrics.member
    assert metrics.client_work.lambda_min.dtype == np.float32
    assert metrics.client_work.lambda_max.dtype == np.float32
    assert metrics.client_work.total_weight.dtype == np.float32


def test_a_round_of_clients_that_weigh_nothing_changes_nothing():
    """A large rate leaves all weight of a cohort with its worst client."""
    process = fair_processes.process("afl", mixture_learning_rate=10.0)
    _, first = problems.run(process, numbered(one_step_each()))
    worst = int(np.argmax(first.state.client_work.mixture))
    others = [number for number in range(4) if number != worst]
    chosen = [fair_processes.CLIENTS[number] for number in others]
    output = process.next(first.state, numbered(one_step_each(chosen), others))
    measured = output.metrics
    assert first.metrics["client_work"]["total_weight"] == pytest.approx(4 / 7)
    assert measured["client_work"]["total_weight"] == 0
    assert measured["finalizer"]["num_rejected_rounds"] == 1
    np.testing.assert_array_equal(
        problems.vector_of(process, output.state),
        problems.vector_of(process, first.state),
    )
    np.testing.assert_array_equal(
        output.state.client_work.mixture, first.state.client_work.mixture
    )


@pytest.mark.parametrize("number", [-1, 3])
def test_afl_refuses_a_client_with_a_number_that_there_is_not(number):
    process = built("afl")
    with pytest.raises(Exception, match=r"\[0, 3\)"):
        process.next(
            process.initialize(), numbered(float32_processes.cohort(), [0, 1, number])
        )
