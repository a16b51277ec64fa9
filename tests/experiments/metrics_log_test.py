"""The metrics file: its rows, what is no number in it, and which rows are missing."""

import math
import re

import numpy as np
import pytest

from tff_algos.experiments import metrics_log


def test_a_mean_over_no_examples_is_no_number():
    of_nobody = {
        "train/loss": np.float32(0.0),
        "train/accuracy": 0.0,
        "train/num_examples": 0,
        "train/num_batches": np.int64(0),
        "eval/loss": 0.0,
        "eval/num_examples": 7,
        "update_norm": 0.0,
        "stage": "fedavg",
    }
    found = metrics_log.without_empty_means(of_nobody)
    assert math.isnan(found.pop("train/loss"))
    assert math.isnan(found.pop("train/accuracy"))
    del of_nobody["train/loss"], of_nobody["train/accuracy"]
    assert found == of_nobody
    of_somebody = {"train/loss": 0.0, "train/num_examples": 1}
    assert metrics_log.without_empty_means(of_somebody) == of_somebody


def test_a_mean_over_no_examples_is_written_and_read_as_no_number(tmp_path):
    log = metrics_log.MetricsLog(tmp_path)
    log.write(1, {"train/loss": math.nan})
    (row,) = metrics_log.read_rows(log.path)
    assert log.path.read_text().splitlines() == ["round,train/loss", "1,nan"]
    assert math.isnan(row["train/loss"])


def test_metrics_are_flat_scalars_without_the_names_of_process_parts():
    nested = {
        "distributor": (),
        "client_work": {"train": {"loss": np.float32(2.0)}, "num_empty_clients": 1},
        "aggregator": {"mean_value": (), "table": np.zeros(3)},
        "finalizer": {"update_norm": np.float32(0.5)},
    }
    assert metrics_log.flatten_metrics(nested) == {
        "train/loss": 2.0,
        "num_empty_clients": 1,
        "update_norm": 0.5,
    }


def test_a_row_that_is_written_again_replaces_itself_and_all_later_ones(tmp_path):
    log = metrics_log.MetricsLog(tmp_path)
    for round_num in range(1, 5):
        log.write(round_num, {"loss": float(round_num)})
    (tmp_path / "metrics.csv_temp1234").write_text("left by a kill")
    log = metrics_log.MetricsLog(tmp_path)
    log.write(3, {"loss": 30.0, "extra": "word"})
    assert metrics_log.read_rows(log.path) == [
        {"round": 1, "loss": 1.0},
        {"round": 2, "loss": 2.0},
        {"round": 3, "loss": 30.0, "extra": "word"},
    ]
    assert not list(tmp_path.glob("*_temp*"))


def test_a_row_of_known_columns_is_appended_to_the_file(tmp_path):
    log = metrics_log.MetricsLog(tmp_path)
    log.write(1, {"loss": 1.0, "eval/loss": 2.0})
    before, file = log.path.read_bytes(), log.path.stat().st_ino
    log.write(2, {"loss": 0.5})
    log = metrics_log.MetricsLog(tmp_path)
    log.write(3, {"loss": 0.25})
    assert log.path.stat().st_ino == file, "the file was written anew"
    assert log.path.read_bytes() == before + b"2,,0.5\r\n3,,0.25\r\n"


def test_a_row_that_a_killed_run_left_unfinished_is_removed(tmp_path):
    log = metrics_log.MetricsLog(tmp_path)
    for round_num in (1, 2):
        log.write(round_num, {"loss": 0.125})
    whole = log.path.read_bytes()
    for left in (b"3", b"3,0.1", b"3,0.125\r"):
        log.path.write_bytes(whole + left)
        metrics_log.remove_unfinished_row(log.path)
        assert log.path.read_bytes() == whole
    metrics_log.remove_unfinished_row(log.path)
    assert log.path.read_bytes() == whole
    log.path.write_bytes(b"round,loss")
    metrics_log.remove_unfinished_row(log.path)
    assert log.path.read_bytes() == b"round,loss\n"


def test_rounds_to_target_is_the_first_evaluated_round_that_reaches_it():
    rows = [
        {"round": 1},
        {"round": 2, "eval/accuracy": 0.5},
        {"round": 3},
        {"round": 4, "eval/accuracy": 0.45},
        {"round": 6, "eval/accuracy": 0.8},
    ]
    targets = metrics_log.rounds_to_target(rows, "eval/accuracy", (0.4, 0.5, 0.6, 0.9))
    assert targets == {"0.4": 2, "0.5": 2, "0.6": 6, "0.9": None}


@pytest.mark.parametrize("target", [0.7, 0.8, 0.9, 0.95, 0.97, 0.99])
def test_rounds_to_target_counts_exact_hits_of_float32(target):
    rows = [
        {"round": 1, "eval/accuracy": float(np.nextafter(np.float32(target), 0))},
        {"round": 2, "eval/accuracy": float(np.float32(target))},
    ]
    targets = metrics_log.rounds_to_target(rows, "eval/accuracy", (target,))
    assert targets == {f"{target:g}": 2}


@pytest.mark.parametrize(
    ("present", "done", "expected"),
    [
        ((1, 2, 3), 3, None),
        ((1, 2, 3), 2, None),
        ((), 0, None),
        ((1, 3), 3, "has no row of round 2, .*: it begins with round 1"),
        ((3, 4), 4, "has no row of rounds 1-2, .*: it begins with round 3"),
        ((2, 4), 4, "has no row of rounds 1, ..., 3, .*: it begins with round 2"),
        ((), 8, "has no row of rounds 1-8, .*: it begins with round 9"),
        ((), 9, "has no row of rounds 1-9, .*: it is empty"),
    ],
)
def test_rounds_without_a_row_are_named(present, done, expected):
    rows = [{"round": number} for number in present]
    told = metrics_log.describe_missing(rows, done, total_rounds=9)
    assert told is expected is None or re.match(expected, told)


@pytest.mark.parametrize(
    ("present", "done", "expected"),
    [
        ((1, 2), 2, None),
        ((), 2, None),
        (
            (1, 2, 3),
            2,
            "the last checkpoint is that of round 2: round 3 runs again.",
        ),
        (
            (1, 2, 3),
            0,
            "ends with round 3, but there is no checkpoint: rounds 1-3 run again.",
        ),
    ],
)
def test_rounds_that_run_again_are_named(present, done, expected):
    rows = [{"round": number} for number in present]
    told = metrics_log.describe_repeated(rows, done)
    assert told is expected is None or told.endswith(expected)
