"""MimeLite's clients train with frozen momentum; the server's follows full gradients."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import problems
from tests.testing.one_client import CLIENT, MODEL, RATE, START, run, vector
from tff_algos.client_works import mime_lite_training
from tff_algos.hyperparameters import HyperparameterError


def test_a_decay_out_of_range_is_named():
    with pytest.raises(HyperparameterError, match="decay=1.5 is not valid"):
        mime_lite_training.build_mime_lite_client_work(
            MODEL,
            tff.learning.optimizers.build_sgdm(0.1),
            client_learning_rate_decay=1.5,
        )


def test_the_first_rounds_momentum_is_the_mean_of_full_gradients():
    work = mime_lite_training.build_mime_lite_client_work(
        MODEL, tff.learning.optimizers.build_sgdm(0.1, momentum=0.5)
    )
    other = problems.Client(CLIENT.x[:2], CLIENT.y[:2])
    output = run(work, CLIENT.batches(2), other.batches(2))
    # A momentum of zero stays zero on the clients, whatever their gradients are.
    for result, client in zip(output.result, (CLIENT, other), strict=True):
        trained, size = client.local_sgd(START, RATE, 2)
        np.testing.assert_allclose(vector(result.update), START - trained, rtol=1e-12)
        assert result.update_weight == size
    mime_state, _ = output.state
    momentum = tf.nest.flatten(mime_state.optimizer["accumulator"])
    gradients = [client.gradient(START) for client in (CLIENT, other)]
    np.testing.assert_allclose(
        vector(momentum), problems.mean(gradients, [5, 2]), rtol=1e-12
    )
    assert mime_state.round_num == 1


def test_a_gradient_whose_square_overflows_leaves_the_shared_state_alone():
    work = mime_lite_training.build_mime_lite_client_work(
        MODEL, tff.learning.optimizers.build_adam(0.1)
    )
    huge = problems.Client(CLIENT.x, np.full(5, 1e200))
    output = run(work, huge.batches(5))
    assert output.measurements["num_non_finite_clients"] == 0
    mime_state, _ = output.state
    for slot in ("accumulator", "preconditioner"):
        assert not np.any(vector(tf.nest.flatten(mime_state.optimizer[slot])))
