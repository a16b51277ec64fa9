"""FedMLB: NumPy's rounds, FedAvg of the local loss alone."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import block_problems
from tests.testing.remembering_identities import (
    after,
    assert_close,
    assert_differ,
    assert_same_bits,
    one_step_each,
)
from tests.testing.remembering_processes import (
    BATCH,
    BLOCK_CLIENTS,
    EPOCHS,
    RATE,
    cohort,
    process,
    some_rounds,
)
from tests.testing.remembering_rounds import block_rounds
from tff_algos.hyperparameters import HyperparameterError

LOSSES = {
    "local_loss_weight": 0.75,
    "hybrid_loss_weight": 1.25,
    "distillation_weight": 2.0,
    "distillation_temperature": 1.5,
}


def objective(previous, server, x, labels, splits=(1, 2)):
    """What local steps descend with `LOSSES`, in NumPy."""
    del previous

    def value(weights):
        *features, logits = block_problems.levels(weights, x)
        hybrids = [
            block_problems.levels(server, features[start - 1], start)[-1]
            for start in splits
        ]
        local = block_problems.log_softmax(logits / 1.5)
        targets = [block_problems.log_softmax(h / 1.5) for h in hybrids]
        divergences = [
            np.mean(np.sum(np.exp(t) * (t - local), axis=-1)) for t in targets
        ]
        losses = [block_problems.cross_entropy(h, labels) for h in hybrids]
        return (
            0.75 * block_problems.cross_entropy(logits, labels)
            + 1.25 * np.mean(losses)
            + 2.0 * np.mean(divergences)
        )

    return value


def test_fedmlbs_rounds_are_numpys():
    fed_mlb = process("fedmlb", gradient_clip_norm=1.5, **LOSSES)
    *_, norms = block_rounds(fed_mlb, objective, clip=1.5)
    # Some of them were clipped.
    assert min(norms) < 1.4 and max(norms) > 1.6


@pytest.mark.parametrize("split", [1, 2])
def test_fedmlbs_local_model_branches_where_it_is_told(split):
    fed_mlb = process("fedmlb", gradient_clip_norm=None, splits=str(split), **LOSSES)
    block_rounds(fed_mlb, functools.partial(objective, splits=[split]))


def test_fedmlbs_default_splits_are_all_blocks_but_the_last():
    data = some_rounds("blocks")
    default = after(process("fedmlb", **LOSSES), *data)
    for splits in ("2,1", ("1", "2")):
        every = process("fedmlb", splits=splits, **LOSSES)
        assert_close(after(every, *data), default)


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ("1,3", "splits='?1,3'? .*numbers out of 1, 2 for a model of 3 blocks"),
        ((2, 2), "each number once"),
        ("1;2", "numbers of blocks, from 1, such as 1,3"),
        ("0", "numbers of blocks, from 1, such as 1,3"),
        (2, "splits=2 .*numbers of blocks"),
        ((), "numbers of blocks, from 1, such as 1,3"),
    ],
)
def test_splits_are_numbers_of_blocks(splits, expected):
    model, sgd = block_problems.block_model(), tff.learning.optimizers.build_sgdm(0.1)
    with pytest.raises(HyperparameterError, match=expected):
        tff_algos.build_fed_mlb(model, sgd, splits=splits)


def test_fedmlbs_client_alone_sets_the_server_model():
    expected = block_problems.initial_vector()
    for number in (0, 3):
        server = expected

        def step(y, x, labels, server=server):
            return block_problems.gradient(objective(None, server, x, labels), y)

        expected = BLOCK_CLIENTS[number].local_sgd(server, RATE, BATCH, EPOCHS, step)
    alone = process("fedmlb", gradient_clip_norm=None, **LOSSES)
    data = [cohort([number], "blocks") for number in (0, 3)]
    assert_close(after(alone, *data), expected)


def test_fedmlb_of_the_local_loss_alone_is_fedavg_to_the_bit():
    data = some_rounds("blocks")
    alone = process(
        "fedmlb",
        hybrid_loss_weight=0.0,
        distillation_weight=0.0,
        gradient_clip_norm=None,
    )
    fedavg = process("fedavg", "blocks")
    assert_same_bits(alone, fedavg, *data)
    assert_differ(after(process("fedmlb"), *data), after(fedavg, *data))


def test_fedmlbs_first_step_moves_a_block_by_the_losses_that_it_has_a_part_in():
    # At the server's weights hybrid models are the local one, and nothing diverges:
    # of two hybrid losses both depend on the first block, one on the second, and none
    # on the third.
    data = one_step_each(model="blocks")
    start = block_problems.initial_vector()
    step = start - after(process("fedavg", "blocks"), data)
    sizes = [weight.size for weight in block_problems.initial_weights()]
    factors = np.repeat([2.0, 1.5, 1.0], np.add.reduceat(sizes, [0, 2, 4]))
    assert_close(start - after(process("fedmlb"), data), factors * step)
