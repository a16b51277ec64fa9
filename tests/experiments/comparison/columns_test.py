"""The columns of a comparison's table, on runs that are made up."""

import json
import math

import pytest

from tests.testing.made_up_runs import CURVE, write_run
from tff_algos.experiments.comparison import columns
from tff_algos.experiments.comparison.errors import ComparisonError


def _results(folder, **kwargs):
    write_run(folder, **kwargs)
    return columns.read_results(folder)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("rounds_to:0.3", 10),
        ("rounds_to:0.31", 20),
        ("rounds_to:0.61", None),
        ("final:eval/accuracy", sum(CURVE) / 5),
        ("last:eval/accuracy", 0.6),
        ("best:eval/accuracy", 0.6),
        ("best:eval/loss", 0.4),
        ("last:train/loss", 1 / 25),
        ("seconds", 2.0),
        ("initial_accuracy", 0.5),
        ("personalization.personalized_accuracy", 0.625),
        ("accuracy_by_epoch.1", 0.625),
        ("final_metrics.eval/accuracy", 0.75),
        ("final_metrics/eval/accuracy", 0.75),
        ("rounds_to_eval_accuracy.0.85", 40),
        ("rounds_to_eval_accuracy.0.9", None),
        ("excluded.num_empty_clients", 3),
    ],
)
def test_columns_are_numbers_of_a_run(tmp_path, column, expected):
    value = columns.parse_column(column).value(_results(tmp_path))
    assert value == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("best:eval/accuracy", 0.3),
        ("best:eval/loss", 0.7),
        ("final:eval/accuracy", 0.2),
        ("last:eval/accuracy", 0.3),
        ("rounds_to:0.3", 15),
        ("initial_accuracy", None),
        ("accuracy_by_epoch.1", None),
    ],
)
@pytest.mark.parametrize("absent", [None, math.nan])
def test_numbers_that_are_absent_count_in_no_column(tmp_path, column, expected, absent):
    summary = {
        "personalization": {
            "initial_accuracy": absent,
            "accuracy_by_epoch": [0, absent],
        }
    }
    results = _results(tmp_path, curve=(math.nan, 0.1, 0.3, math.nan), summary=summary)
    value = columns.parse_column(column).value(results)
    assert value == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("column", ["best:eval/loss", "final:eval/loss", "rounds_to:1"])
def test_a_column_of_nan_has_no_value(tmp_path, column):
    results = _results(tmp_path, curve=(math.nan,))
    parsed = columns.parse_column(column)
    assert parsed.value(results) is None
    assert columns.format_cell(parsed, [parsed.value(results)]) == "-"


def test_an_edited_metrics_file_is_an_error_that_names_it(tmp_path):
    write_run(tmp_path)
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("3,fedavg\n")
    with pytest.raises(
        ComparisonError, match=r"metrics.csv cannot be read: line 27 has 2"
    ):
        columns.read_results(tmp_path)


@pytest.mark.parametrize("name", ["metrics.csv", "summary.json"])
@pytest.mark.parametrize("content", [None, b'{"rounds": 5, \xdc', b"[]"])
def test_a_missing_or_torn_file_is_an_error_that_names_it(tmp_path, name, content):
    write_run(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ComparisonError, match=rf"{name} cannot be read: "):
        columns.read_results(tmp_path)


def test_the_final_value_is_the_mean_of_the_last_ten_evaluations(tmp_path):
    results = _results(tmp_path, curve=[0.9] * 5 + [0.1] * 5 + [0.2] * 5)
    column = columns.parse_column("final:eval/accuracy")
    assert column.value(results) == pytest.approx(0.15)


def test_the_best_value_may_be_before_the_last(tmp_path):
    results = _results(tmp_path, curve=(0.1, 0.8, 0.7))
    for column, expected in (("best:eval/accuracy", 0.8), ("best:eval/loss", 0.2)):
        value = columns.parse_column(column).value(results)
        assert value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("final:eval/accuracy", [0.5, 0.52], "51.00 (1.00)"),
        ("final:eval/accuracy", [0.12345], "12.35"),
        ("rounds_to:0.8", [10, 15, 20], "15 (4.1)"),
        ("rounds_to:0.8", [10, None, 15], "12.5 (2.5), 2 of 3"),
        ("rounds_to:0.8", [None, 15], "15, 1 of 2"),
        ("rounds_to:0.8", [None, None], "-"),
        ("rounds_to_eval_accuracy.0.85", [30, 50], "40 (10)"),
        ("best:eval/loss", [0.5, 1.5], "1.00 (0.500)"),
    ],
)
def test_cells_are_means_and_standard_deviations(column, values, expected):
    assert columns.format_cell(columns.parse_column(column), values) == expected


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("worst:eval/accuracy", "--columns=worst:eval/accuracy: .*rounds_to:ACC, fina"),
        ("final:", "--columns=final:: expected .*best:METRIC, seconds"),
        ("rounds_to:80", r"--columns=rounds_to:80: expected an accuracy in \(0, 1\]"),
        ("rounds_to:most", r"--columns=rounds_to:most: .* in \(0, 1\]"),
        ("final:eval/acc", "--columns=final:eval/acc: .*eval/accuracy, eval/loss, rou"),
        ("last:stage", "--columns=last:stage: expected one of eval/accuracy"),
        ("accuracy", "--columns=accuracy: .*initial_accuracy, personalized_.*summary."),
    ],
)
def test_unknown_columns_are_errors_that_name_the_choices(tmp_path, column, message):
    with pytest.raises(ComparisonError, match=message) as error:
        columns.parse_column(column).value(_results(tmp_path))
    assert "\n" not in str(error.value)


def test_runs_without_evaluations_have_no_rounds_to_an_accuracy(tmp_path):
    write_run(tmp_path, curve=())
    (tmp_path / "metrics.csv").write_text("round,seconds\n1,2.0\n")
    results = columns.read_results(tmp_path)
    with pytest.raises(
        ComparisonError, match="rounds_to:0.5: expected one of round, sec"
    ):
        columns.parse_column("rounds_to:0.5").value(results)


@pytest.mark.parametrize(
    ("column", "header"),
    [
        ("rounds_to:0.8", "rounds to 80 %"),
        ("last:eval/accuracy", "held-out accuracy, %"),
        ("final:eval/accuracy", "final:eval/accuracy, %"),
        ("seconds", "seconds per round"),
        ("excluded.num_empty_clients", "excluded.num_empty_clients"),
    ],
)
def test_headers_are_words_and_units(column, header):
    assert columns.parse_column(column).header == header


def test_shares_of_clients_are_in_percent():
    column = columns.parse_column("last:improved_clients")
    assert column.header == "last:improved_clients, %"
    assert column.format(0.875) == "87.50"
    assert columns.parse_column("final:eval/loss").format(0.875) == "0.875"


def test_the_usual_columns_are_those_that_runs_have(tmp_path):
    results = _results(tmp_path, curve=(0.2, 0.6, 0.72))
    names = [column.name for column in columns.default_columns([results])]
    assert names == [
        "last:eval/accuracy",
        "initial_accuracy",
        "personalized_accuracy",
        "rounds_to:0.6",
        "rounds_to:0.7",
        "seconds",
    ]
    assert columns.default_columns([]) == []


def test_accuracy_after_no_personalization_is_no_usual_column(tmp_path):
    people = {"initial_accuracy": 0.5, "personalized_accuracy": 0.5}
    summary = {
        "personalization": people | {"accuracy_by_epoch": [0.5]},
        "personalization_seen": people | {"accuracy_by_epoch": [0.5]},
    }
    without = _results(tmp_path / "without", summary=summary)
    names = [column.name for column in columns.default_columns([without])]
    assert "initial_accuracy" in names
    assert not any("personalized" in name for name in names)
    # Beside a run that personalizes, the cell is empty.
    personalizes = _results(tmp_path / "with")
    found = columns.default_columns([without, personalizes])
    (column,) = [each for each in found if "personalized" in each.name]
    assert column.value(without) is None and column.value(personalizes) == 0.625
    assert columns.parse_column("personalized_accuracy").value(without) == 0.5


def test_the_dataset_and_the_flags_of_a_run_are_read(tmp_path):
    results = _results(tmp_path, seed=4)
    assert results.dataset == "made_up"
    assert results.settings == {"algo": "fedavg", "task": "mnist", "seed": 4}


def test_a_usual_column_is_empty_for_a_run_without_it(tmp_path):
    """Of an algorithm whose clients keep models, beside one whose clients do not."""
    summary = tmp_path / "own" / "summary.json"
    plain, own = (_results(tmp_path / name) for name in ("plain", "own"))
    held = json.loads(summary.read_text())
    held["personalization"]["own_accuracy"] = 0.5
    held |= {"bytes_down_per_round": 3e6, "bytes_up_per_round": 2e6}
    summary.write_text(json.dumps(held))
    own = columns.read_results(summary.parent)
    found = {column.name: column for column in columns.default_columns([plain, own])}
    accuracy = found["own_accuracy"]
    assert accuracy.value(plain) is None and accuracy.value(own) == 0.5
    for direction, megabytes in (("down", "3.00"), ("up", "2.00")):
        sent = found[f"bytes_{direction}_per_round"]
        assert sent.header == f"MB {direction} per round"
        assert sent.format(sent.value(own)) == megabytes
        assert sent.value(plain) is None
