"""Training on pooled examples: the optimizer goes on from round to round."""

import numpy as np
import tensorflow_federated as tff

from tests.testing import problems
from tests.testing.one_client import CLIENT
from tff_algos.client_works import pooled_training

MODEL = problems.linear_model(np.float32)


def test_the_momentum_of_a_round_is_there_in_the_next():
    work = pooled_training.build_pooled_training_client_work(
        MODEL, tff.learning.optimizers.build_sgdm(0.1, momentum=0.5)
    )
    data = [CLIENT.batches(dtype=np.float32)]
    state = work.initialize()
    expected, momentum = problems.initial_vector(np.float32), 0.0
    for _ in range(3):
        w = expected.astype(np.float32)
        weights = tff.learning.models.ModelWeights((w[:-1], w[-1]), ())
        output = work.next(state, [weights], data)
        state = output.state
        momentum = 0.5 * momentum + CLIENT.gradient(expected)
        (result,) = output.result
        np.testing.assert_allclose(
            np.append(*result.update), 0.1 * momentum, rtol=1e-4, atol=1e-6
        )
        expected = expected - 0.1 * momentum
    assert result.update_weight == 5.0
