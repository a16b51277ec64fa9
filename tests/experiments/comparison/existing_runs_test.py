"""Runs that have ended are rows: by their settings, with readable names."""

import json
import re

import pytest

from tests.testing.made_up_runs import write_run
from tff_algos.experiments import declarations
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.comparison.rows import Row, make_rows

WHAT = declarations.load()
TASK = "--task=mnist"


def test_existing_runs_that_differ_in_the_seed_are_one_row(tmp_path):
    folders = [tmp_path / name for name in ("one", "two", "other")]
    for seed, folder in enumerate(folders):
        write_run(folder, seed=seed)
    config = {"hyperparameters": {"algo": "uga", "seed": 0}}
    (folders[2] / "config.json").write_text(json.dumps(config))
    rows = make_rows([*map(str, folders)], [], [], WHAT)
    assert rows == [
        Row(label="fedavg (2 runs)", folders=tuple(folders[:2])),
        Row(label="uga (other)", folders=(folders[2],)),
    ]


def test_runs_on_other_data_are_rows_of_their_own(tmp_path):
    def row_folders(*fingerprints, seeds=(0, 1)):
        folders = []
        for number, (mark, seed) in enumerate(zip(fingerprints, seeds, strict=True)):
            folders.append(tmp_path / str(number))
            write_run(folders[-1], seed=seed)
            path = folders[-1] / "config.json"
            config = json.loads(path.read_text()) | {"data_fingerprint": mark}
            path.write_text(json.dumps(config))
        rows = make_rows([*map(str, folders)], [], [], WHAT)
        return [[path.name for path in row.folders] for row in rows]

    # The part after the "-" differs by seed.
    assert row_folders("one-a", "one-b") == [["0", "1"]]
    assert row_folders("one-a", "other-b") == [["0"], ["1"]]
    assert row_folders("one-a", "other-a", seeds=(0, 0)) == [["0"], ["1"]]
    with pytest.raises(ComparisonError, match="are runs of the same settings and seed"):
        row_folders("one-a", "one-a", seeds=(0, 0))
    # As before: those of earlier versions say no more.
    assert row_folders("one", "other") == [["0", "1"]]
    with pytest.raises(ComparisonError, match="are runs of the same settings and seed"):
        row_folders("one", "other", seeds=(0, 0))


def _labels(tmp_path, names, contenders=()):
    """Returns the labels of existing runs, all with different settings, and others."""
    for number, name in enumerate(names):
        write_run(tmp_path / name)
        algorithm = name.rpartition("/")[2].partition("+")[0].partition("-")[0]
        config = {"algo": algorithm, "task": "mnist", "seed": 0, "momentum": number}
        path = tmp_path / name / "config.json"
        path.write_text(json.dumps({"hyperparameters": config}))
    given = [*contenders, *(str(tmp_path / name) for name in names)]
    return [row.label for row in make_rows(given, [TASK] * bool(contenders), [], WHAT)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["fedprox+proximal_strength=0.1+seed=0"], ["fedprox+proximal_strength=0.1"]),
        (["fedavg-mnist-20261124-101500"], ["fedavg-mnist-20261124-101500"]),
        (["fedavg+seed=0", "fedavg+seed=1"], ["fedavg+seed=0", "fedavg+seed=1"]),
        (["a/fedavg+seed=0", "b/uga+seed=3"], ["fedavg", "uga"]),
        (
            ["a/fedavg+seed=0", "b/fedavg+seed=0"],
            ["a/fedavg+seed=0", "b/fedavg+seed=0"],
        ),
    ],
)
def test_folders_that_begin_with_the_algorithm_are_labels(tmp_path, names, expected):
    assert _labels(tmp_path, names) == expected


def test_an_existing_run_is_not_called_as_a_row_to_run(tmp_path):
    labels = _labels(tmp_path, ["fedavg+seed=0"], ["fedavg"])
    assert labels == ["fedavg", "fedavg+seed=0"]


def test_seeds_of_a_comparison_are_called_as_there(tmp_path):
    folders = [tmp_path / f"fedavg+momentum=0.9+seed={seed}" for seed in range(2)]
    for seed, folder in enumerate(folders):
        write_run(folder, seed=seed)
    rows = make_rows([*map(str, folders)], [], [], WHAT)
    assert rows == [Row(label="fedavg+momentum=0.9", folders=tuple(folders))]


def test_runs_that_are_not_complete_or_readable_are_errors(tmp_path):
    write_run(tmp_path)
    for text in ("[]", "{}", '{"hyperparameters": {"algo": 3}}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ComparisonError, match=r"config.json cannot be read"):
            make_rows([str(tmp_path)], [], [], WHAT)
    (tmp_path / "summary.json").unlink()
    expected = re.escape(f"{tmp_path} has no summary.json: its run is not complete.")
    with pytest.raises(ComparisonError, match=expected):
        make_rows([str(tmp_path)], [], [], WHAT)


def test_runs_on_different_tasks_say_on_which(tmp_path):
    for name in ("mnist", "emnist"):
        write_run(tmp_path / name)
        config = {"hyperparameters": {"algo": "fedavg", "task": name, "seed": 0}}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    rows = make_rows([str(tmp_path / "mnist"), str(tmp_path / "emnist")], [], [], WHAT)
    assert [row.label for row in rows] == [
        "fedavg on mnist (mnist)",
        "fedavg on emnist (emnist)",
    ]


def test_runs_under_different_attacks_say_under_which(tmp_path):
    for name, attack in (("a", "scale:10"), ("b", "bias:1"), ("c", None)):
        write_run(tmp_path / name)
        config = {"algo": "fedavg", "task": "mnist", "seed": 0, "attack": attack}
        path = tmp_path / name / "config.json"
        path.write_text(json.dumps({"hyperparameters": config}))
    rows = make_rows([str(tmp_path / name) for name in "abc"], [], [], WHAT)
    assert [row.label for row in rows] == [
        "fedavg under scale:10 (a)",
        "fedavg under bias:1 (b)",
        "fedavg (c)",
    ]


@pytest.mark.parametrize("words", [["--flagfile={}"], ["--flagfile", "{}"], []])
def test_what_the_flag_file_of_a_run_says_was_published_is_beside_it(tmp_path, words):
    preset = tmp_path / "row.flags"
    preset.write_text("# 63.34 (4.32)\n--algo=fedavg\n")
    write_run(tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    command = ["main.py", *(word.format(preset) for word in words), "--seed=1"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"command": command}))
    (row,) = make_rows([str(tmp_path / "a")], [], [], WHAT)
    assert row.published == ("63.34 (4.32)" if words else None)
