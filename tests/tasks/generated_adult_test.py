"""The stand-in for Adult: its groups, its rates, and what can be learned of it."""

import numpy as np
import pytest
from sklearn import linear_model

from tasks import adult, generated_adult


@pytest.fixture(scope="module")
def people():
    return generated_adult.people()


def _doctors(x):
    return x[:, adult.DOCTORATE] == 1


def test_groups_have_their_types_and_sizes(people):
    for x, y, sizes in (
        (people.x_train, people.y_train, [6000, 200]),
        (people.x_test, people.y_test, [3000, 100]),
    ):
        assert x.dtype == np.uint8 and x.shape == (sum(sizes), 99)
        assert y.dtype == np.int32 and y.shape == (sum(sizes),)
        assert np.bincount(_doctors(x)).tolist() == sizes


def test_groups_have_rates_of_their_own(people):
    for x, y in ((people.x_train, people.y_train), (people.x_test, people.y_test)):
        assert y[_doctors(x)].mean() == pytest.approx(0.74, abs=0.005)
        assert y[~_doctors(x)].mean() == pytest.approx(0.24, abs=0.005)


def test_everyone_has_a_category_of_each_attribute_or_none(people):
    groups = np.split(people.x_train, np.cumsum([8, 16, 7, 14, 6, 5, 2]), axis=1)
    for number, group in enumerate(groups):
        known = group.sum(1)
        assert known.max() == 1
        if number == 1:
            assert known.min() == 1
        else:
            assert 0.01 < np.mean(known == 0) < 0.03


def test_arrays_are_kept_for_the_process_and_read_only(people):
    assert generated_adult.people() is people
    for name in ("x_train", "y_train", "x_test", "y_test"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(people, name)[0] = 0


def test_examples_drawn_again_are_the_same(people):
    again = generated_adult.people.__wrapped__()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(again, name), getattr(people, name))


def test_the_order_says_nothing_of_the_groups(people):
    shares = [
        _doctors(part).mean() for part in np.array_split(people.x_train, 4, axis=0)
    ]
    assert min(shares) > 0.01


def _accuracies(people, train_rows):
    """Returns test accuracy of those without and with a doctorate."""
    model = linear_model.LogisticRegression(max_iter=1000)
    model.fit(people.x_train[train_rows], people.y_train[train_rows])
    correct = model.predict(people.x_test) == people.y_test
    doctors = _doctors(people.x_test)
    return correct[~doctors].mean(), correct[doctors].mean()


def test_they_can_be_learned_and_a_model_suits_the_larger_group_better(people):
    others, doctors = _accuracies(people, np.arange(len(people.y_train)))
    # Of who says what is most frequent in a group, 0.76 and 0.74 are right.
    assert others > 0.83
    assert doctors < others - 0.04


def test_the_smaller_group_alone_has_a_better_model(people):
    _, common = _accuracies(people, np.arange(len(people.y_train)))
    _, own = _accuracies(people, _doctors(people.x_train))
    assert own > common + 0.02
