"""AFL's mixture: it rises where losses are large, within the share of who takes part."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import one_client
from tests.testing.one_client import CLIENT, MODEL
from tff_algos.client_works import afl_training


def ascend(mixture, losses, takes_part, rate):
    return afl_training.ascend(
        tf.constant(mixture, tf.float64),
        tf.constant(losses, tf.float64),
        tf.constant(takes_part),
        rate,
    ).numpy()


def test_who_takes_part_shares_what_it_had_and_the_others_keep_theirs():
    found = ascend([0.25] * 4, [1.0, 0.0, 0.0, 5.0], [True, True, False, False], 0.1)
    np.testing.assert_allclose(found, [0.3, 0.2, 0.25, 0.25], rtol=1e-12)


def test_a_weight_does_not_fall_below_zero():
    found = ascend([0.1, 0.9], [0.0, 10.0], [True, True], 1.0)
    np.testing.assert_allclose(found, [0.0, 1.0], atol=1e-12)


def test_weights_concentrate_on_the_largest_loss_as_the_rate_grows():
    losses = [1.0, 3.0, 2.0]
    found = [
        ascend([1 / 3] * 3, losses, [True] * 3, rate)[1]
        for rate in (0.0, 0.01, 0.1, 0.3, 1.0)
    ]
    assert found == sorted(found) and found[0] == pytest.approx(1 / 3)
    assert found[-1] == pytest.approx(1.0, rel=1e-12)


def test_equal_losses_change_nothing():
    found = ascend([0.5, 0.2, 0.3], [7.0] * 3, [True] * 3, 0.2)
    np.testing.assert_allclose(found, [0.5, 0.2, 0.3], rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "value"), [("afl_mode", "step"), ("afl_loss", "clients")]
)
def test_unknown_words_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name}='{value}' .*: expected one of"):
        afl_training.build_agnostic_training_client_work(
            MODEL,
            tff.learning.optimizers.build_sgdm(0.1),
            num_clients=2,
            mixture_learning_rate=0.1,
            **{name: value},
        )


@pytest.mark.parametrize("indices", [(0, 3), (-1, 0), (1, 1)])
def test_clients_out_of_range_or_twice_end_the_round(indices):
    work = afl_training.build_agnostic_training_client_work(
        MODEL,
        tff.learning.optimizers.build_sgdm(0.1),
        num_clients=3,
        mixture_learning_rate=0.1,
    )

    def data(index):
        return collections.OrderedDict(
            examples=CLIENT.batches(), client_index=tff_algos.index_dataset(index)
        )

    output = one_client.run(work, data(0), data(2))
    assert output.result[0].update_weight == pytest.approx(1 / 3)
    with pytest.raises(
        Exception, match=r"client_index in \[0, 3\) and once in a round"
    ):
        one_client.run(work, *map(data, indices))
