"""FedBN: batch normalization stays with the clients, the rest is FedAvg's."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tasks.models.normalized import build_tiny_nn
from tests.testing import problems
from tests.testing.remembering_cohorts import Training
from tests.testing.remembering_identities import assert_same_bits
from tests.testing.remembering_processes import process, some_rounds

SHAPE, SGD = (2, 2, 1), tff.learning.optimizers.build_sgdm(0.1)


@pytest.fixture(scope="module")
def model():
    return build_tiny_nn(SHAPE, num_classes=3, seed=0)


@pytest.fixture(scope="module")
def processes(model):
    return tff_algos.build_fed_bn(model, SGD), tff_algos.build_fed_avg(model, SGD)


def _cohort(numbers):
    return {k: _batches(np.random.default_rng(k)) for k in numbers}


def _batches(rng):
    x = rng.normal(size=(8, *SHAPE)).astype(np.float32)
    y = rng.integers(3, size=8).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


def test_without_batch_normalization_it_is_fedavg_to_the_bit():
    data = some_rounds("blocks")
    assert_same_bits(process("fedbn"), process("fedavg", "blocks"), *data)


def test_the_first_round_is_fedavgs_but_for_batch_normalization(model, processes):
    mask = model.mask_of_batch_norm().trainable
    assert any(mask) and not all(mask)
    after = []
    for each in processes:
        training = Training(each, 4)
        training.round(_cohort((0, 1, 2)))
        after.append(each.get_model_weights(training.state))
    initial = model.initial_weights
    for own, found, fedavgs, start in zip(
        mask, *(w.trainable for w in after), initial[0], strict=True
    ):
        np.testing.assert_array_equal(found, start if own else fedavgs)
    for found, start in zip(after[0].non_trainable, initial[1], strict=True):
        np.testing.assert_allclose(found, start, rtol=1e-6)


def test_later_a_client_trains_with_its_own_batch_normalization(model, processes):
    """A client alone then does what FedAvg's does from the model it predicts with."""
    bn, fedavg = processes
    training, plain = Training(bn, 4), Training(fedavg, 4)
    training.round(_cohort((0, 1, 2)))
    server = bn.get_model_weights(training.state)
    before = bn.get_personal_weights(server, training.memory.row(1))
    plain.state = fedavg.set_model_weights(plain.state, before)
    training.round(_cohort((1,)))
    plain.round(_cohort((1,)))
    server = bn.get_model_weights(training.state)
    found = bn.get_personal_weights(server, training.memory.row(1))
    expected = fedavg.get_model_weights(plain.state)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        (found.trainable, found.non_trainable),
        (expected.trainable, expected.non_trainable),
    )
    # Client 2 did not take part, and a newcomer has the server's.
    newcomer = bn.get_personal_weights(server, training.memory.row(3))
    np.testing.assert_array_equal(newcomer.trainable[0], server.trainable[0])


def test_a_model_without_blocks_is_refused():
    with pytest.raises(TypeError, match="BlockModel"):
        tff_algos.build_fed_bn(problems.linear_model(), SGD)
