"""q-FedAvg: the paper's fraction in NumPy, uniform FedAvg at q zero."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import fair_processes, fair_rounds, local_steps, problems
from tests.testing.fair_processes import after, assert_differ
from tests.testing.fair_rounds import (
    CLIENTS,
    SERVER_RATE,
    batch_losses,
    build,
    delta_of,
    mean_loss,
)
from tests.testing.local_steps import RATE, SIZES, data_of, run, stage_of, trained

START = problems.initial_vector()
UNIFORM = tff.learning.ClientWeighting.UNIFORM


@pytest.mark.parametrize("loss_reduction", ["mean", "total"])
def test_q_fedavgs_round_is_the_papers_fraction(loss_reduction):
    q, lipschitz = 1.0, 3.0
    process = build(
        tff_algos.build_q_fed_avg,
        q=q,
        lipschitz=lipschitz,
        loss_reduction=loss_reduction,
    )
    found, output = problems.run(process, fair_rounds.cohort(), fair_rounds.cohort())
    expected = START
    for _ in range(2):
        numerator, denominator, losses = 0.0, 0.0, []
        for client in CLIENTS:
            loss = mean_loss(client, expected)
            if loss_reduction == "total":
                loss = batch_losses(client, expected)[0].sum()
            gradient = lipschitz * delta_of(client, expected)
            numerator = numerator + loss**q * gradient
            denominator += q * loss ** (q - 1) * gradient @ gradient
            denominator += lipschitz * loss**q
            losses.append(loss)
        expected = expected - SERVER_RATE * numerator / denominator
    fair_rounds.assert_close(found, expected)
    assert output.metrics["client_work"]["max_loss"] == pytest.approx(max(losses))
    assert output.metrics["aggregator"]["mean_loss"] == pytest.approx(np.mean(losses))


def test_the_largest_loss_is_undefined_unless_a_client_counts():
    process = fair_processes.process("qfedavg")
    nobody = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    for cohort in ([], [nobody.batches(2)]):
        output = process.next(process.initialize(), cohort)
        assert np.isnan(output.metrics["client_work"]["max_loss"])


@pytest.mark.parametrize("lipschitz", [0.1, 7.0])
def test_q_fedavg_with_q_zero_is_uniform_fedavg_whatever_lipschitz(lipschitz):
    data = fair_processes.cohort()
    fair = fair_processes.process("qfedavg", q=0.0, lipschitz=lipschitz)
    uniform = fair_processes.process("fedavg", client_weighting=UNIFORM)
    fair_processes.assert_close(after(fair, data, data), after(uniform, data, data))
    assert_differ(after(fair_processes.process("qfedavg"), data), after(uniform, data))


def test_q_fedavg_of_equal_losses_and_norms_is_a_shorter_step_of_uniform_fedavg():
    # A client whose inputs are mirrored in a plane that the weights lie in has the same
    # losses; its updates are mirrored.
    client, normal = CLIENTS[0], np.array([1.0, 0.0, 0.0, 0.0, 1.0])
    assert normal @ START[:-1] == 0
    mirrored = problems.Client(client.x - np.outer(client.x @ normal, normal), client.y)
    data = fair_processes.cohort([client, mirrored])
    delta, other = (delta_of(each, START) for each in (client, mirrored))
    assert_differ(delta, other)
    q, lipschitz, loss = 2.0, 10.0, mean_loss(client, START)
    square = lipschitz**2 * delta @ delta
    uniform = fair_processes.process("fedavg", client_weighting=UNIFORM)
    step = lipschitz * loss / (q * square + lipschitz * loss)
    fair_rounds.assert_close(
        after(fair_processes.process("qfedavg", q=q, lipschitz=lipschitz), data),
        START + step * (after(uniform, data) - START),
    )
    assert step < 0.9


@pytest.mark.parametrize("reduction", ["mean", "total"])
@pytest.mark.parametrize(
    "length", [{}, {"client_steps_per_round": None, "client_epochs_per_round": 3}]
)
def test_q_fedavgs_loss_is_that_of_one_pass_over_the_clients_examples(
    reduction, length
):
    stage = stage_of("qfedavg", q=1.0, loss_reduction=reduction, **length)
    data, read = data_of(stage)
    lipschitz, numerator, denominator = 1 / RATE, 0.0, 0.0
    for own in read.values():
        means = [local_steps.loss(START, batch) for batch in own["full_pass"]]
        sizes = [len(y) for _, y in own["full_pass"]]
        its_loss = (
            np.sum(means) if reduction == "total" else np.average(means, weights=sizes)
        )
        step = lipschitz * (START - trained(START, own["examples"]))
        numerator = numerator + its_loss * step
        denominator += step @ step + lipschitz * its_loss
    assert sum(len(y) for _, y in read[2]["full_pass"]) == SIZES[2]
    np.testing.assert_allclose(
        run(stage, data), START - numerator / denominator, rtol=1e-6, atol=1e-7
    )


def test_a_full_pass_begins_as_the_epochs_do():
    stage = stage_of("qfedavg", client_steps_per_round=None, client_epochs_per_round=3)
    _, read = data_of(stage)
    for own in read.values():
        for (x, y), (x_of_epochs, y_of_epochs) in zip(
            own["full_pass"], own["examples"], strict=False
        ):
            np.testing.assert_array_equal(x, x_of_epochs)
            np.testing.assert_array_equal(y, y_of_epochs)
