"""A task: its names, its clients' batches, and its model in variables."""

import attrs
import numpy as np
import pytest

from tasks.task import DataOptions
from tests.testing import tiny_task
from tff_algos.clients.batching import BatchSpec
from tff_algos.hyperparameters import HyperparameterError

TASK = tiny_task.make()


def labels(client_id="3", split="train", seed=0):
    spec = BatchSpec(batch_size=100, num_epochs=1)
    ((_, y),) = TASK.client_dataset(client_id, split, spec, seed).as_numpy_iterator()
    return y.tolist()


def test_the_name_in_outputs_tells_the_stand_in_apart():
    assert TASK.dataset_name == "tiny_generated"
    assert attrs.evolve(TASK, data_source="tff").dataset_name == "tiny"


def test_a_clients_batches_are_its_examples_in_an_order_of_the_seed():
    _, expected = TASK.examples("3", "train")
    assert sorted(labels()) == sorted(expected.tolist())
    spec = BatchSpec(batch_size=100, num_epochs=1)
    orders = {
        seed: next(iter(TASK.client_dataset("3", "train", spec, seed)))[0].numpy()
        for seed in (0, 1)
    }
    again = next(iter(TASK.client_dataset("3", "train", spec, 0)))[0].numpy()
    np.testing.assert_array_equal(again, orders[0])
    assert np.any(orders[1] != orders[0])


def test_every_call_makes_a_model_with_variables_of_its_own():
    one, other = TASK.model_fn(), TASK.model_fn()
    one.trainable_variables[0].assign_add(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(
        other.trainable_variables[0], TASK.model.initial_weights[0][0]
    )


def test_a_source_of_data_that_there_is_not_is_named():
    assert DataOptions().data == "auto"
    with pytest.raises(HyperparameterError, match="data='real'.*auto, tff, generated"):
        DataOptions(data="real")


@pytest.mark.parametrize("seed", [-1, 1.5, None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(HyperparameterError, match="^seed=.*expected an integer >= 0"):
        DataOptions(seed=seed)
