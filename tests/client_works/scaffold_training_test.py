"""SCAFFOLD's client: corrected steps, and the next control variate, in NumPy."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.one_client import CLIENT, MODEL, RATE, START, run, vector, weights_at
from tff_algos.client_works import scaffold_training

ROW = np.linspace(-1, 1, 6)


@pytest.mark.parametrize("control_variate", ["mean_step", "full_gradient"])
def test_a_client_steps_against_its_control_and_remembers_the_next(control_variate):
    work = scaffold_training.build_scaffold_client_work(
        MODEL,
        client_learning_rate=0.1,
        num_clients=4,
        control_variate=control_variate,
    )
    data = collections.OrderedDict(
        examples=CLIENT.batches(2),
        client_index=tf.data.Dataset.from_tensors(np.int32(0)),
        memory=tf.data.Dataset.from_tensors(weights_at(ROW).trainable),
    )
    output = run(work, data)
    trained, _ = CLIENT.local_sgd(START, RATE, 2, correction=lambda _: -ROW)
    (result,) = output.result
    np.testing.assert_allclose(vector(result.update), START - trained, rtol=1e-12)
    expected = ROW + (START - trained) / (3 * RATE)
    if control_variate == "full_gradient":
        expected = CLIENT.gradient(START)
    found = np.append(*(rows[0] for rows in output.measurements["memory"]["row"]))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    # The server's control moves by a fourth of the change.
    np.testing.assert_allclose(
        vector(output.state.shared), (expected - ROW) / 4, rtol=1e-9, atol=1e-12
    )


def test_an_unknown_control_variate_is_named():
    with pytest.raises(ValueError, match="control_variate='both' .*: expected one of"):
        scaffold_training.build_scaffold_client_work(
            MODEL, client_learning_rate=0.1, num_clients=4, control_variate="both"
        )
