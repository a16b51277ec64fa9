"""Local training: every client alone, a server that learns nothing."""

import numpy as np

from tests.testing import personal_rounds, problems, remembering_rounds
from tests.testing.remembering_cohorts import run
from tests.testing.remembering_identities import trained
from tests.testing.remembering_processes import NUM_CLIENTS, cohort, process

START = problems.initial_vector()


def test_clients_train_on_from_where_they_ended_and_the_server_stays():
    data = cohort((0, 2)), cohort((1,)), cohort((0, 1))
    training = run(process("local"), NUM_CLIENTS, *data)
    np.testing.assert_array_equal(training.weights, START)
    for client, rounds in ((0, 2), (1, 2), (2, 1), (3, 0)):
        expected = START
        for _ in range(rounds):
            expected = trained(client, expected)
        found = personal_rounds.predicting(training, client)
        remembering_rounds.assert_close(found, expected)
