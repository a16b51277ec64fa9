"""The Pachinko allocation: clients of a few groups of classes, by the seed alone."""

import numpy as np
import pytest

from tasks import pachinko
from tasks.task import TaskError

GROUP_OF_CLASS = np.arange(100) // 5
LABELS = np.random.default_rng(0).permutation(np.arange(5000) % 100)


def _divide(num_clients=25, seed=0, **changes):
    return pachinko.divide(
        LABELS,
        GROUP_OF_CLASS,
        num_clients=num_clients,
        examples_per_client=100,
        seed=seed,
        **changes,
    )


def test_everyone_has_as_many_and_nothing_comes_twice():
    parts = _divide()
    assert [len(part) for part in parts] == [100] * 25
    assert len(np.unique(np.concatenate(parts))) == 2500
    assert all((np.diff(part) > 0).all() for part in parts)


def test_the_last_clients_take_what_is_left():
    parts = _divide(num_clients=50)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(5000))


def test_the_seed_alone_decides():
    for one, again, other in zip(_divide(), _divide(), _divide(seed=1)):
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, other)


def test_a_client_has_few_groups_and_all_classes_of_them():
    sizes, classes_of_largest = [], []
    for part in _divide():
        groups = np.bincount(GROUP_OF_CLASS[LABELS[part]], minlength=20)
        sizes.append(np.sort(groups)[::-1])
        own = LABELS[part][GROUP_OF_CLASS[LABELS[part]] == groups.argmax()]
        classes_of_largest.append(len(np.unique(own)))
    # Of 20 groups, uniform ones would have 5 examples each.
    assert np.mean(sizes, axis=0)[:3].sum() > 75
    # Of concentrations of 0.1 for the classes, too, most would have one or two.
    assert np.mean(classes_of_largest) > 4.5


def test_clients_prefer_different_groups():
    largest = [
        np.bincount(GROUP_OF_CLASS[LABELS[part]], minlength=20).argmax()
        for part in _divide()
    ]
    assert len(set(largest)) > 8


def test_too_few_examples_are_refused():
    with pytest.raises(TaskError, match=r"pachinko needs 5100 .*51 clients.* has 5000"):
        _divide(num_clients=51)
