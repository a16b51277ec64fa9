"""A generated stand-in for UCI's Adult: made-up people with the same attributes.

People with a doctorate are few and mostly have a high income, unlike all others. The
frequencies of the other attributes differ between the two groups. The income is
determined by a noisy linear score of the attributes. Most weights of the score are
common to both groups, but some categories have opposite signs: a linear model can be
learned and fits the larger group better.
"""

import functools

import numpy as np

from tasks import adult_file
from tasks.array_source import Arrays
from tasks.task import Split

_SPLITS: tuple[Split, ...] = ("train", "test")

# By whether people have a doctorate: the people per split, and the share of label 1.
_NUM_PEOPLE = {
    True: {"train": 200, "test": 100},
    False: {"train": 6000, "test": 3000},
}
_POSITIVE_RATES = {True: 0.74, False: 0.24}

# Standard deviations of the weights shared by both groups, and of those with opposite
# signs in the groups.
_COMMON_SCALE, _OPPOSED_SCALE = 1.5, 0.75

# Concentration: the smaller, the fewer categories of an attribute are frequent.
_EVENNESS = 1.0
_SHARE_UNKNOWN = 0.02


@functools.cache
def people() -> Arrays:
    """Returns 6,200 people to train on and 3,100 to test, 200 and 100 with doctorates.

    `x` is uint8 [n, 99], the features of `tasks.adult_file`; `y` is int32 [n], 1 for
    74% of the people with a doctorate and 24% of the others, in either split.
    """
    found = {}
    for split in _SPLITS:
        groups = [_draw(doctorate, split) for doctorate in _NUM_PEOPLE]
        x, y = (np.concatenate(parts) for parts in zip(*groups, strict=True))
        order = _rng(0, _SPLITS.index(split)).permutation(len(y))
        found[f"x_{split}"], found[f"y_{split}"] = x[order], y[order]
    for array in found.values():
        array.flags.writeable = False
    return Arrays(**found)


def _draw(doctorate: bool, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Draws the people of one group: uint8 [n, 99], int32 [n]."""
    rng = _rng(1, _SPLITS.index(split), doctorate)
    num_people = _NUM_PEOPLE[doctorate][split]
    x = _features(_frequencies(doctorate), num_people, rng)
    score = x @ _weights(doctorate) + rng.logistic(size=num_people)
    # The highest scores are positive, so that the rate is exact.
    threshold = np.quantile(score, 1.0 - _POSITIVE_RATES[doctorate])
    return x, (score > threshold).astype(np.int32)


def _features(
    frequencies: dict[str, np.ndarray], num_people: int, rng: np.random.Generator
) -> np.ndarray:
    x = np.zeros((num_people, adult_file.NUM_FEATURES), np.uint8)
    for attribute, of_attribute in frequencies.items():
        first = adult_file.feature(attribute, adult_file.CATEGORIES[attribute][0])
        category = rng.choice(len(of_attribute), num_people, p=of_attribute)
        # The education defines the groups, so it is always known.
        share_unknown = 0.0 if attribute == "education" else _SHARE_UNKNOWN
        x[np.arange(num_people), first + category] = (
            rng.random(num_people) >= share_unknown
        )
    return x


def _frequencies(doctorate: bool) -> dict[str, np.ndarray]:
    """Returns each attribute's probabilities of its categories in a group."""
    rng = _rng(2, doctorate)
    frequencies = {}
    for attribute, categories in adult_file.CATEGORIES.items():
        drawn = rng.gamma(_EVENNESS, size=len(categories))
        if attribute == "education":
            is_doctorate = np.array(categories) == "Doctorate"
            drawn *= is_doctorate == doctorate
        frequencies[attribute] = drawn / drawn.sum()
    return frequencies


def _weights(doctorate: bool) -> np.ndarray:
    common, opposed = _rng(3).standard_normal((2, adult_file.NUM_FEATURES))
    sign = 1.0 if doctorate else -1.0
    return _COMMON_SCALE * common + sign * _OPPOSED_SCALE * opposed


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(key))
