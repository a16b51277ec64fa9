"""Training on pooled examples: the optimizer goes on from round to round."""

import numpy as np
import tensorflow as tf
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


def test_a_round_that_would_leave_the_optimizer_infinite_changes_nothing():
    """The square of a finite gradient may be infinite in float32."""
    work = pooled_training.build_pooled_training_client_work(
        MODEL, tff.learning.optimizers.build_adam(0.1)
    )
    start = problems.initial_vector().astype(np.float32)
    weights = [tff.learning.models.ModelWeights((start[:-1], start[-1]), ())]
    before = work.initialize()
    x = np.full_like(CLIENT.x, 1e19, np.float32)
    huge = tf.data.Dataset.from_tensors((x, CLIENT.y.astype(np.float32)))
    output = work.next(before, weights, [huge])
    assert output.measurements["num_non_finite_clients"] == 1
    tf.nest.map_structure(np.testing.assert_array_equal, output.state, before)
    output = work.next(output.state, weights, [CLIENT.batches(dtype=np.float32)])
    assert output.measurements["num_non_finite_clients"] == 0
    assert np.any(output.result[0].update[0] != 0)
