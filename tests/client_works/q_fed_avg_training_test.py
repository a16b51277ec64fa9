"""The loss that q-FedAvg's clients tell: a mean over examples, or a sum of batches."""

import numpy as np
import pytest

from tests.testing import problems
from tests.testing.one_client import CLIENT, MODEL, START, weights_at
from tff_algos.client_works import q_fed_avg_training
from tff_algos.models import local_model


def loss_at(client, reduction):
    return q_fed_avg_training.loss_at(
        local_model.create(MODEL), weights_at(), client.batches(2), reduction
    ).numpy()


def test_the_mean_is_over_examples_and_the_total_over_batches():
    losses = (CLIENT.x @ START[:-1] + START[-1] - CLIENT.y) ** 2 / 2
    assert loss_at(CLIENT, "mean") == pytest.approx(np.mean(losses), rel=1e-12)
    batches = [np.mean(losses[start : start + 2]) for start in (0, 2, 4)]
    assert loss_at(CLIENT, "total") == pytest.approx(np.sum(batches), rel=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "total"])
def test_the_loss_of_no_examples_is_zero(reduction):
    nobody = problems.Client(CLIENT.x[:0], CLIENT.y[:0])
    assert loss_at(nobody, reduction) == 0.0
