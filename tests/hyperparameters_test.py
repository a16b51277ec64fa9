"""Hyperparameters: what is checked when a record is made."""

import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_algos import registry
from tff_algos.algorithms.personalized_fed_avg import PersonalizedFedAvgHParams
from tff_algos.hyperparameters import (
    MAX_INTEGER,
    HyperparameterError,
    Interval,
    choice,
    hparam,
    switch,
)


@attrs.frozen(kw_only=True)
class Record:
    rate: float = hparam(0.1, float, Interval(low=0, low_open=True), "a rate")
    steps: int = hparam(1, int, Interval(low=1, high=9), "steps")
    limit: int | None = hparam(None, int, Interval(low=1), "a limit")
    kind: str = choice("a", ("a", "b"), "a kind")
    on: bool = switch(False, "a switch")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 0.0}, r"rate=0.0 is not valid: expected a number > 0\."),
        ({"rate": math.nan}, r"rate=nan is not valid: expected a number > 0\."),
        ({"rate": "1"}, r"rate='1' is not valid"),
        ({"rate": True}, r"rate=True is not valid"),
        ({"steps": 10}, r"steps=10 is not valid: expected an integer in \[1, 9\]\."),
        ({"steps": 2.0}, r"steps=2.0 is not valid: expected an integer"),
        ({"limit": 0}, r"limit=0 is not valid: expected an integer >= 1\."),
        ({"rate": np.True_}, r"rate=np.True_ is not valid: expected a number"),
        ({"rate": np.ones(1)}, r"rate=array\(\[1.\]\) is not valid"),
        ({"rate": 10**400}, r"rate=1000.* \(401 characters\) is not valid"),
        ({"steps": np.True_}, r"steps=np.True_ is not valid: expected an integer"),
        ({"steps": np.float64(2)}, r"steps=np.float64\(2.0\) is not valid"),
        ({"limit": 10**400}, r"limit=1000.* \(401 characters\) .*>= 1 and at most"),
        ({"limit": -(10**5000)}, r"limit=an integer of 16610 bits is not valid"),
        ({"limit": 2**31}, r"an integer >= 1 and at most 2147483647\."),
        ({"on": 1}, r"on=1 is not valid: expected True or False"),
        ({"kind": "c"}, r"kind='c' is not valid: expected one of a, b\."),
    ],
)
def test_a_bad_value_is_named_with_what_is_expected(values, message):
    with pytest.raises(HyperparameterError, match=message):
        Record(**values)


@pytest.mark.parametrize(
    "value", [np.int8(3), np.uint64(3), np.float16(3), np.float32(3), np.float64(3)]
)
def test_numbers_of_numpy_become_pythons(value):
    record = Record(rate=value)
    assert record.rate == 3.0 and type(record.rate) is float
    if isinstance(value, np.integer):
        record = Record(steps=value, limit=value)
        assert record.steps == record.limit == 3
        assert type(record.steps) is type(record.limit) is int
    assert Record(on=np.True_).on is True


def test_integers_go_as_far_as_tensorflow_counts():
    assert Record(limit=MAX_INTEGER).limit == 2**31 - 1


def test_a_long_value_is_shown_by_its_beginning():
    with pytest.raises(HyperparameterError) as error:
        Record(kind="a" * 5000)
    shown = "'" + "a" * 79
    assert str(error.value).startswith(f"kind={shown}... (5002 characters) is not")
    assert len(str(error.value)) < 200


def test_an_integer_is_a_number_and_none_is_no_limit():
    record = Record(rate=2, limit=None)
    assert type(record.rate) is float and record.limit is None


@given(
    low=st.floats(-10, 10),
    width=st.floats(0.1, 10),
    share=st.floats(0, 1),
    low_open=st.booleans(),
    high_open=st.booleans(),
)
def test_an_interval_holds_its_inside_and_its_closed_ends(
    low, width, share, low_open, high_open
):
    interval = Interval(low, low + width, low_open, high_open)
    inside = low + share * width
    if low < inside < low + width:
        assert inside in interval
    assert (low in interval) is not low_open
    assert (low + width in interval) is not high_open
    assert low - 1e-3 not in interval and low + width + 1e-3 not in interval
    for never in (math.inf, -math.inf, math.nan, 10**400, -(10**400)):
        assert never not in interval


@pytest.mark.parametrize(
    "algorithm", registry.ALGORITHMS.values(), ids=lambda a: a.name
)
def test_every_algorithm_has_valid_defaults_and_describes_its_hyperparameters(
    algorithm,
):
    algorithm.resolve("any task", {}, {})
    for field in algorithm.hparam_fields().values():
        assert field.metadata["help"] and "\n" not in field.metadata["help"]
        # Both values of a switch are valid.
        if field.metadata["kind"] is not bool:
            assert "valid" in field.metadata or "choices" in field.metadata


def test_flags_beat_the_papers_setting_which_beats_the_tasks():
    centralized = registry.get("centralized")
    task_settings = {"client_learning_rate": 0.5, "client_batch_size": 7, "unused": 1}
    hparams = centralized.resolve("emnist", task_settings, {})
    assert (hparams.client_learning_rate, hparams.client_batch_size) == (0.001, 7)
    hparams = centralized.resolve(
        "emnist", task_settings, {"client_learning_rate": 0.2}
    )
    assert hparams.client_learning_rate == 0.2


def test_steps_replace_epochs():
    fedavg = registry.get("fedavg")
    batches = fedavg.resolve("emnist", {}, {"client_steps_per_round": 4}).batches()
    assert (batches.num_steps, batches.num_epochs) == (4, None)
    both = {"client_steps_per_round": 4, "client_epochs_per_round": 2}
    with pytest.raises(HyperparameterError, match="without client_epochs_per_round"):
        fedavg.resolve("emnist", {}, both)


@pytest.mark.parametrize(
    ("given_rounds", "expected"),
    [
        ({}, (20, 8)),
        ({"total_rounds": 700}, (500, 200)),
        ({"total_rounds": 40}, (29, 11)),
        ({"total_rounds": 10, "finetune_rounds": 0}, (10, 0)),
        ({"total_rounds": 10, "pretrain_rounds": 4}, (4, 6)),
        ({"pretrain_rounds": 3, "finetune_rounds": 5}, (3, 5)),
        ({"finetune_rounds": 3}, (25, 3)),
    ],
)
def test_rounds_of_personalized_fedavg(given_rounds, expected):
    assert PersonalizedFedAvgHParams(**given_rounds).stage_rounds() == expected


@pytest.mark.parametrize(
    "given_rounds",
    [
        {"total_rounds": 10, "finetune_rounds": 11},
        {"total_rounds": 10, "pretrain_rounds": 3, "finetune_rounds": 3},
    ],
)
def test_rounds_of_personalized_fedavg_must_add_up(given_rounds):
    with pytest.raises(HyperparameterError, match="total_rounds=10 is not valid"):
        PersonalizedFedAvgHParams(**given_rounds)


def test_momentum_that_an_optimizer_would_ignore_is_refused():
    with pytest.raises(HyperparameterError, match="base_momentum=0.9.*adam has no"):
        registry.get("mimelite").resolve("emnist", {}, {"client_optimizer": "adam"})
