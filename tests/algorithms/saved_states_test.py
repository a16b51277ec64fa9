"""States of every kind are saved and loaded by TFF's own state manager."""

import asyncio

import numpy as np
import pytest
import tensorflow_federated as tff
import tree

import tff_algos
from tests.testing.linear_processes import CLIENTS, META, cohort, model
from tests.testing.remembering_cohorts import Training

SGD = tff.learning.optimizers.build_sgdm

PROCESSES = {
    "fedavg": lambda m: tff_algos.build_fed_avg(m, SGD(0.1)),
    "afl": lambda m: tff_algos.build_agnostic_federated_learning(
        m, SGD(0.1), num_clients=3, mixture_learning_rate=0.1
    ),
    "fedmeta": lambda m: tff_algos.build_fed_meta(
        tff_algos.build_fed_avg(m, SGD(0.1)),
        m,
        tuple(array.astype(np.float32) for array in META),
        meta_learning_rate=0.1,
    ),
    "gradma": lambda m: tff_algos.build_gradma(m, SGD(0.1), num_clients=3),
    "mifa": lambda m: tff_algos.build_mifa(m, SGD(0.1), num_clients=3),
    "mimelite": lambda m: tff_algos.build_mime_lite(m, SGD(0.1, momentum=0.9)),
    "scaffold": lambda m: tff_algos.build_scaffold(
        m, client_learning_rate=0.1, num_clients=3
    ),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_a_file_has_the_state_after_a_round(name, tmp_path):
    process = PROCESSES[name](model(np.float32))
    training = Training(process, num_clients=3)
    training.round(dict(enumerate(cohort(CLIENTS[:3], dtype=np.float32))))
    state = training.state
    manager = tff.program.FileProgramStateManager(str(tmp_path / "states"))

    async def save_and_load():
        await manager.save(state, 1)
        return await manager.load(1, process.initialize())

    loaded = asyncio.run(save_and_load())
    tree.assert_same_structure(loaded, state)
    for found, expected in zip(tree.flatten(loaded), tree.flatten(state), strict=True):
        np.testing.assert_array_equal(found, expected)
