"""SCAFFOLD: NumPy's rounds and controls, FedAvg, SGD and FedSGD at its limits."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import (
    local_steps,
    problems,
    remembering_identities,
    remembering_rounds,
)
from tests.testing.local_steps import rows_after_a_round, stage_of
from tests.testing.remembering_cohorts import run, vector
from tests.testing.remembering_identities import after, assert_differ, one_step_each
from tests.testing.remembering_processes import (
    CLIENTS,
    NUM_CLIENTS,
    RATE,
    cohort,
    process,
)
from tests.testing.remembering_rounds import COHORTS, num_steps, rounds

START = problems.initial_vector()
UNIFORM = tff.learning.ClientWeighting.UNIFORM


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"control_variate": "full_gradient"},
        {"client_learning_rate_decay": 0.5},
    ],
)
def test_scaffolds_rounds_are_numpys(changes):
    w, mean, own = START, np.zeros(6), np.zeros([NUM_CLIENTS, 6])
    decay = changes.get("client_learning_rate_decay", 1.0)
    for number, (training, _) in enumerate(rounds(process("scaffold", **changes))):
        taking_part, rate, deltas, new = COHORTS[number], RATE * decay**number, [], {}
        for k in taking_part:
            y = remembering_rounds.trained(
                k, w, rate, lambda _, shift=mean - own[k]: shift
            )
            deltas.append(w - y)
            new[k] = own[k] - mean + (w - y) / (num_steps(k) * rate)
            if "control_variate" in changes:
                new[k] = CLIENTS[k].gradient(w)
        mean = mean + sum(new[k] - own[k] for k in taking_part) / NUM_CLIENTS
        for k in taking_part:
            own[k] = new[k]
        w = w - np.mean(deltas, axis=0)
        remembering_rounds.assert_close(training.weights, w)
        remembering_rounds.assert_close(vector(training.state.client_work.shared), mean)
        remembering_rounds.assert_close(
            [training.row(k) for k in range(NUM_CLIENTS)], own
        )


@pytest.mark.parametrize("changes", [{}, {"control_variate": "full_gradient"}])
def test_scaffold_is_uniform_fedavg_in_the_first_round_only(changes):
    data = cohort()
    scaffold = process("scaffold", **changes)
    fedavg = process("fedavg", client_weighting=UNIFORM)
    remembering_identities.assert_close(after(scaffold, data), after(fedavg, data))
    assert_differ(after(scaffold, data, data), after(fedavg, data, data))


def test_scaffold_of_one_client_is_local_sgd():
    data = cohort([0])
    expected = problems.initial_vector()
    for _ in range(3):
        expected = remembering_identities.trained(0, expected)
    remembering_identities.assert_close(
        after(process("scaffold", num_clients=1), data, data, data), expected
    )


def test_scaffold_of_one_full_batch_step_and_all_clients_is_fedsgd():
    everybody = one_step_each(range(NUM_CLIENTS))
    scaffold = run(process("scaffold"), NUM_CLIENTS, everybody, everybody)
    expected = problems.initial_vector()
    for _ in range(2):
        gradients = [client.gradient(expected) for client in CLIENTS]
        expected = expected - RATE * np.mean(gradients, axis=0)
    remembering_identities.assert_close(scaffold.weights, expected)
    # Controls are the gradients at the weights before the round.
    remembering_identities.assert_close(scaffold.row(3), gradients[3])


def test_scaffolds_option_one_is_the_gradient_over_the_clients_examples():
    stage = stage_of("scaffold", control_variate="full_gradient")
    assert stage.client_data_fields == [
        "examples",
        "client_index",
        "full_pass",
        "memory",
    ]
    rows, _ = rows_after_a_round(stage)
    for row, client in zip(rows, local_steps.CLIENTS, strict=True):
        np.testing.assert_allclose(row, client.gradient(START), rtol=1e-9)


def test_clients_data_without_their_fields_are_named():
    scaffold = process("scaffold")
    with pytest.raises(TypeError, match="Expected examples, client_index, memory of"):
        scaffold.next(scaffold.initialize(), [CLIENTS[0].batches()])
