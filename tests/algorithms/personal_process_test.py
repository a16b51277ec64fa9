"""Processes of clients with models of their own: TFF's processes, and their models."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import block_problems, problems
from tests.testing.remembering_cohorts import Training, run
from tests.testing.remembering_processes import (
    NUM_CLIENTS,
    cohort,
    invalid_clients,
    process,
    some_rounds,
)
from tff_algos import execution
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


# Weights of the model that clients send, of the blocks' sizes or of all.
SENT = {
    "ditto": 1,
    "pfedme": 1,
    "apfl": 1,
    "fedper": "first blocks",
    "fedrep": "first blocks",
    "lg_fedavg": "last blocks",
    "local": 0,
}


def _bytes_up(found, clients):
    training = Training(found, NUM_CLIENTS)
    with execution.measured_communication() as meter:
        training.round(clients)
    return meter.total.bytes_up / len(clients)


@pytest.mark.parametrize("name", PERSONAL)
def test_what_clients_keep_is_not_sent(name):
    """Beside the part of the model: its weight, and sums of counts and metrics."""
    blocks = isinstance(SENT[name], str)
    model = block_problems.block_model() if blocks else problems.linear_model()
    sizes = np.array([8 * np.size(each) for each in model.initial_weights[0]])
    mask = {
        "first blocks": lambda: personal_process.last_blocks(model, 1).trainable,
        "last blocks": lambda: personal_process.first_blocks(model, 1).trainable,
    }
    kept = (
        np.array(mask[SENT[name]]()) if blocks else np.full(len(sizes), not SENT[name])
    )
    others = _bytes_up(process("local"), cohort((0, 1, 2)))
    sent = _bytes_up(process(name), cohort((0, 1), "blocks" if blocks else "linear"))
    weight = 4 if np.any(~kept) else 0
    assert others < 40
    assert sent == sizes[~kept].sum() + weight + others


def test_a_server_optimizer_leaves_the_clients_part_as_it_was():
    model = block_problems.block_model()
    built = tff_algos.build_fed_per(
        model,
        tff.learning.optimizers.build_sgdm(0.1),
        tff.learning.optimizers.build_adamw(0.1, weight_decay=0.5),
    )
    training = run(built, NUM_CLIENTS, *some_rounds("blocks"))
    moved = training.weights != block_problems.initial_vector()
    own = sum(np.size(weight) for weight in model.initial_weights[0][-2:])
    assert not np.any(moved[-own:]) and np.all(moved[:-own])
