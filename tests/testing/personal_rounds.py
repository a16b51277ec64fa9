"""Rounds of clients with models of their own, in plain NumPy."""

from collections.abc import Callable

import numpy as np

from tests.testing import block_problems, problems, remembering_rounds
from tests.testing.remembering_cohorts import Training, vector
from tests.testing.remembering_processes import (
    BATCH,
    BLOCK_CLIENTS,
    CLIENTS,
    EPOCHS,
    RATE,
)
from tests.testing.remembering_rounds import COHORTS, SIZES, rounds


def own_weights(training: Training, client: int) -> np.ndarray:
    """Returns a client's row without its flag, as a vector."""
    return vector(training.memory.row(client)["weights"])


def predicting(training: Training, client: int) -> np.ndarray:
    """Returns the weights that a client predicts with, as a vector."""
    server = training.process.get_model_weights(training.state)
    row = training.memory.row(client)
    return vector(training.process.get_personal_weights(server, row).trainable)


def batch_rows(client: int) -> list[slice]:
    """Returns the rows of each of a client's batches in a round, in order."""
    count = len(CLIENTS[client].y)
    return [slice(at, at + BATCH) for at in range(0, count, BATCH)] * EPOCHS


def _block_step(mask: np.ndarray | float) -> Callable:
    """Returns what steps on the block model follow, where `mask` is one."""

    def step(y, x, labels):
        def loss(weights):
            logits = block_problems.levels(weights, x)[-1]
            return block_problems.cross_entropy(logits, labels)

        return mask * block_problems.gradient(loss, y)

    return step


def assert_partly_personal(process, mask: np.ndarray, train: Callable) -> None:
    """Asserts that rounds are those of clients that keep a part of a block model.

    Args:
      process: The process.
      mask: One where a weight is the clients' own, else zero, [51].
      train: `(client's number, weights before) -> weights after` its local steps.
    """
    w, own = block_problems.initial_vector(), {}
    start = w
    for number, (training, _) in enumerate(rounds(process, model="blocks")):
        taking_part, models = COHORTS[number], {}
        for k in taking_part:
            before = np.where(mask, own.get(k, w), w)
            models[k] = train(k, before)
        own |= models
        mean = problems.mean(list(models.values()), [SIZES[k] for k in taking_part])
        w = np.where(mask, start, mean)
        remembering_rounds.assert_close(training.weights, w)
        for k in taking_part:
            remembering_rounds.assert_close(
                own_weights(training, k), models[k][mask > 0]
            )
            remembering_rounds.assert_close(
                predicting(training, k), np.where(mask, models[k], w)
            )
    # A client that never took part predicts with the server's model.
    remembering_rounds.assert_close(predicting(training, 4), w)


def trained(number: int, start: np.ndarray, mask: np.ndarray | float = 1.0):
    """Returns a client's block model after its local steps on some weights."""
    return BLOCK_CLIENTS[number].local_sgd(
        start, RATE, BATCH, EPOCHS, _block_step(mask)
    )
