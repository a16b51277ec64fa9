"""FedDyn's client: regularized steps, and the next linear term, in NumPy."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.one_client import CLIENT, MODEL, RATE, START, run, vector, weights_at
from tff_algos.client_works import fed_dyn_training

ROW, ALPHA = np.linspace(-1, 1, 6), 0.5


@pytest.mark.parametrize(("mean_examples", "strength"), [(None, 1.0), (10.0, 2.0)])
def test_a_client_is_pulled_to_the_server_and_along_its_linear_term(
    mean_examples, strength
):
    work = fed_dyn_training.build_dynamic_regularization_client_work(
        MODEL,
        tff.learning.optimizers.build_sgdm(0.1),
        dynamic_regularization=ALPHA,
        mean_examples=mean_examples,
    )
    data = collections.OrderedDict(
        examples=CLIENT.batches(2),
        client_index=tf.data.Dataset.from_tensors(np.int32(0)),
        memory=tf.data.Dataset.from_tensors(weights_at(ROW).trainable),
    )
    output = run(work, data)
    trained, _ = CLIENT.local_sgd(
        START, RATE, 2, correction=lambda y: strength * (ALPHA * (y - START) - ROW)
    )
    (result,) = output.result
    np.testing.assert_allclose(vector(result.update), START - trained, rtol=1e-12)
    assert result.update_weight == 1.0
    found = np.append(*(rows[0] for rows in output.measurements["memory"]["row"]))
    np.testing.assert_allclose(found, ROW + ALPHA * (START - trained), rtol=1e-12)
