"""Processes of clients with models of their own: TFF's processes, and their models."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import block_problems, problems
from tests.testing.remembering_cohorts import run
from tests.testing.remembering_processes import (
    NUM_CLIENTS,
    cohort,
    invalid_clients,
    process,
)
from tff_algos.algorithms import personal_process

PERSONAL = ("ditto", "pfedme", "apfl", "fedper", "fedrep", "lg_fedavg", "local")


@pytest.mark.parametrize("name", PERSONAL)
def test_it_is_a_learning_process_whose_clients_have_a_row(name):
    found = process(name)
    assert isinstance(found, tff.learning.templates.LearningProcess)
    assert isinstance(found, tff_algos.PersonalProcess)
    member = found.next.type_signature.parameter[1].member
    assert tff.structure.name_list(member) == ["examples", "client_index", "memory"]
    row = member.memory.element
    assert tff.structure.name_list(row)[0] == "seen" and row.seen.dtype == np.bool_


@pytest.mark.parametrize("name", PERSONAL)
def test_invalid_clients_change_neither_the_server_nor_their_rows(name):
    model = "blocks" if name in ("fedper", "fedrep", "lg_fedavg") else "linear"
    valid = cohort((0, 1, 2), model)
    alone = run(process(name), NUM_CLIENTS, valid)
    beside = run(process(name), NUM_CLIENTS, valid | invalid_clients(model))
    np.testing.assert_allclose(beside.weights, alone.weights, rtol=1e-12)
    for client in (4, 5, 6):
        assert not np.any(beside.row(client))
    np.testing.assert_allclose(beside.row(0), alone.row(0), rtol=1e-12)
    assert np.any(beside.row(0))


def test_parts_are_whole_blocks():
    model = block_problems.block_model()
    last = personal_process.last_blocks(model, 2)
    first = personal_process.first_blocks(model, 1)
    assert last.trainable == (False, False, True, True, True, True)
    assert first.trainable == (True, True, False, False, False, False)
    with pytest.raises(TypeError, match="BlockModel"):
        personal_process.last_blocks(problems.linear_model(), 1)
