"""Checkpoints: saved, loaded, or refused; and whose run a folder holds."""

import asyncio
import collections
import functools

import numpy as np
import pytest

from tff_algos.experiments import checkpoints, files
from tff_algos.experiments.errors import ResumeError


def state(*values):
    return collections.OrderedDict(
        weights=(np.array(values, np.float32), np.float64(0.1)), round=np.int32(4)
    )


def test_a_state_comes_back_as_it_was(tmp_path):
    saved = checkpoints.Checkpoints(tmp_path)
    saved.save(3, state(1, 2))
    found, memory = checkpoints.Checkpoints(tmp_path).load(3, state(0, 0))
    np.testing.assert_array_equal(found["weights"][0], [1, 2])
    assert found["weights"][1] == 0.1 and found["round"] == 4
    assert memory is None


def test_a_memory_comes_back_at_any_size(tmp_path):
    saved = checkpoints.Checkpoints(tmp_path)
    rows = {"clients": np.arange(5), "offset": np.int64(7)}
    saved.save(1, state(1), rows)
    like = {"clients": np.arange(0), "offset": np.int64(0)}
    _, memory = saved.load(1, state(0), like)
    np.testing.assert_array_equal(memory["clients"], np.arange(5))
    assert memory["offset"] == 7


def test_the_newest_are_kept_and_none_is_written_twice(tmp_path):
    saved = checkpoints.Checkpoints(tmp_path)
    for round_num in (1, 2, 3):
        saved.save(round_num, state(round_num))
    assert saved.rounds() == [2, 3]
    saved.save(3, state(30))
    assert saved.load(3, state(0))[0]["weights"][0] == [3]


def test_a_state_of_another_model_is_refused(tmp_path):
    saved = checkpoints.Checkpoints(tmp_path)
    saved.save(1, state(1, 2))
    with pytest.raises(ResumeError, match="belongs to another model or algorithm"):
        saved.load(1, state(1, 2, 3))


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ResumeError, match="round_9 cannot be read .*delete it"):
        checkpoints.Checkpoints(tmp_path).load(9, state(1))


def test_it_works_inside_a_running_event_loop(tmp_path):
    async def cell():
        saved = checkpoints.Checkpoints(tmp_path)
        saved.save(1, state(5))
        return saved.rounds()

    assert asyncio.run(cell()) == [1]


def test_a_folder_without_a_run_holds_none(tmp_path):
    assert checkpoints.check_config(tmp_path, {"rate": 0.5}) is None


def test_a_run_is_its_own_and_may_be_longer_or_shorter_where_that_is_allowed(tmp_path):
    hyperparameters = {"rate": 0.5, "rounds": 3}
    checkpoints.write_config(tmp_path, {"hyperparameters": hyperparameters})
    assert checkpoints.check_config(tmp_path, hyperparameters)
    longer = {"rate": 0.5, "rounds": 4}
    assert checkpoints.check_config(tmp_path, longer, total_rounds="rounds")
    # A mistyped number can be taken back, but not below the rounds that are done.
    check = functools.partial(
        checkpoints.check_config, tmp_path, total_rounds="rounds", rounds_done=2
    )
    for number in (2, 3, 1000):
        assert check(hyperparameters | {"rounds": number})
    for number in (1, None):
        with pytest.raises(ResumeError, match=f"--rounds: was 3, now {number}"):
            check(hyperparameters | {"rounds": number})
    for changed, told in (
        (longer, "--rounds: was 3, now 4"),
        ({"rate": 0.5, "rounds": 2}, "--rounds: was 3, now 2"),
        ({"rate": 0.5}, "--rounds: was 3, now None"),
    ):
        with pytest.raises(ResumeError, match=told):
            checkpoints.check_config(tmp_path, changed)


def test_a_run_on_other_data_is_not_resumed(tmp_path):
    config = {"hyperparameters": {"algo": "fedavg"}, files.FINGERPRINT: "one"}
    checkpoints.write_config(tmp_path, config)
    settings = config["hyperparameters"]
    assert checkpoints.check_config(tmp_path, settings, fingerprint="one")
    with pytest.raises(ResumeError, match="holds a run on other data"):
        checkpoints.check_config(tmp_path, settings, fingerprint="another")
