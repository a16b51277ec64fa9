"""What a server holds of its own, and what clients share."""

import attrs
import numpy as np
import pytest

import tff_algos
from tests.testing import tiny_task
from tff_algos.clients.batching import derive_seed
from tff_algos.experiments import server_examples
from tff_algos.hyperparameters import HyperparameterError

TASK = tiny_task.make()


def rows(examples):
    """The examples as a set of tuples."""
    x, y = examples
    return {(*row, label) for row, label in zip(x.tolist(), y.tolist(), strict=True)}


def rows_of(client_ids):
    return set().union(*(rows(TASK.examples(c, "train")) for c in client_ids))


TRAINING = rows_of(TASK.train_client_ids)


def test_a_fraction_of_the_training_examples_is_drawn_without_replacement():
    drawn = server_examples.draw(TASK, 0.25, "meta")
    assert len(drawn[0]) == len(drawn[1]) == round(len(TRAINING) / 4)
    assert len(rows(drawn)) == len(drawn[0])
    assert rows(drawn) <= TRAINING


def test_everything_can_be_drawn():
    assert rows(server_examples.draw(TASK, 1.0, "meta")) == TRAINING


def test_the_draw_depends_on_seed_and_purpose_alone():
    drawn = rows(server_examples.draw(TASK, 0.25, "meta"))
    assert rows(server_examples.draw(TASK, 0.25, "meta")) == drawn
    assert rows(server_examples.draw(TASK, 0.25, "shared")) != drawn
    other = attrs.evolve(TASK, seed=1)
    assert rows(server_examples.draw(other, 0.25, "meta")) != drawn


def test_examples_of_one_client_at_a_time_are_those_of_all_in_one_array():
    rng = np.random.default_rng(derive_seed(TASK.seed, "server examples", "meta"))
    rng.choice(len(TASK.train_client_ids), len(TASK.train_client_ids), replace=False)
    parts = [TASK.examples(each, "train") for each in TASK.train_client_ids]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    taken = rng.choice(len(x), round(len(x) / 4), replace=False)
    found = server_examples.draw(TASK, 0.25, "meta")
    np.testing.assert_array_equal(found[0], x[taken])
    np.testing.assert_array_equal(found[1], y[taken])
    assert found[1].dtype == y.dtype


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_the_overlap_is_the_share_from_clients_that_train(overlap):
    drawn = server_examples.draw(TASK, 0.25, "meta", overlap)
    total = round(len(TRAINING) / 4)
    assert len(drawn[0]) == total
    outside = rows(drawn) - TRAINING
    assert len(outside) == round((1 - overlap) * total)
    assert outside <= rows_of(TASK.eval_client_ids)


@pytest.mark.parametrize(
    ("fraction", "num_clients"), [(0.01, 200), (0.15, 300), (0.8, 1000)]
)
def test_large_populations_are_represented_by_200_clients_or_as_many_as_it_takes(
    fraction, num_clients
):
    asked = set()

    def examples(client_id, split):
        asked.add(client_id)
        return TASK.examples("1", split)

    many = attrs.evolve(
        TASK, train_client_ids=tuple(map(str, range(1000))), examples=examples
    )
    drawn = server_examples.draw(many, fraction, "meta")
    size = len(TASK.examples("1", "train")[0])
    assert len(drawn[0]) == round(fraction * 1000 * size)
    assert len(asked) == num_clients


def test_overlap_below_one_needs_clients_that_do_not_train():
    same = attrs.evolve(TASK, eval_client_ids=TASK.train_client_ids)
    with pytest.raises(HyperparameterError, match="meta_overlap=0.5.*also trains"):
        server_examples.draw(same, 0.25, "meta", 0.5)


def test_more_than_there_is_cannot_be_drawn():
    with pytest.raises(
        HyperparameterError, match="meta_fraction=1.0.*examples at most"
    ):
        server_examples.draw(TASK, 1.0, "meta", 0.0)


OWN = {name: (np.full((2, 1), k), np.full(2, k)) for k, name in enumerate("abcde")}
SHARED = (np.arange(100, 107)[:, np.newaxis], np.arange(100, 107))


def test_a_shared_set_reaches_every_client_whole():
    united = tff_algos.with_shared_examples(OWN.get, tuple(OWN), SHARED)
    for k, name in enumerate(OWN):
        x, y = united(name)
        np.testing.assert_array_equal(y, [k, k, *range(100, 107)])
        np.testing.assert_array_equal(x[:, 0], y)


def test_a_shared_set_is_dealt_out():
    united = tff_algos.with_shared_examples(
        OWN.get, tuple(OWN), SHARED, mode="split", seed=3
    )
    parts = [united(name)[1][2:].tolist() for name in OWN]
    assert sorted(np.concatenate(parts)) == list(range(100, 107))
    assert sorted(map(len, parts)) == [1, 1, 1, 2, 2]
    again = tff_algos.with_shared_examples(OWN.get, tuple(OWN), SHARED, "split", 3)
    assert [again(name)[1][2:].tolist() for name in OWN] == parts


def test_an_unknown_mode_is_named():
    with pytest.raises(ValueError, match="mode='some' .*: expected one of full, split"):
        tff_algos.with_shared_examples(OWN.get, tuple(OWN), SHARED, mode="some")
