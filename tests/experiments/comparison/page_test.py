"""The HTML page of a comparison: what it says of runs that are made up."""

import datetime
import json

import pytest

from tests.testing.made_up_runs import SUMMARY, write_run
from tff_algos.experiments.comparison import page
from tff_algos.experiments.comparison.columns import read_results
from tff_algos.experiments.comparison.rows import Row


def _results(folder, dataset="mnist", **settings):
    write_run(folder, summary=SUMMARY | {"dataset": dataset}, curve=(0.1, 0.2))
    shared = {"algo": "fedavg", "task": "mnist", "partition": None, "standardize": True}
    config = {"hyperparameters": shared | settings}
    (folder / "config.json").write_text(json.dumps(config))
    return read_results(folder)


def test_the_facts_are_those_of_all_completed_runs(tmp_path):
    one = _results(tmp_path / "one", seed=0)
    two = _results(tmp_path / "two", seed=1)
    assert page.facts({Row(label="a"): [one, two], Row(label="b"): [one, None]}) == {
        "task": "mnist",
        "rounds": "10",
        "seeds": "0, 1",
        "date": datetime.date.today().isoformat(),
    }
    assert list(page.facts({Row(label="a"): [None]})) == ["date"]


def test_shared_flags_are_those_with_one_value_that_is_set(tmp_path):
    one = _results(tmp_path / "one", seed=0, label="out come", client_momentum=0.9)
    two = _results(tmp_path / "two", seed=1, label="out come", client_momentum=0.5)
    outcomes = {Row(label="a"): [one], Row(label="b"): [two, None]}
    assert page.shared_flags(outcomes) == [
        "--algo=fedavg",
        "--task=mnist",
        "--standardize=true",
        "'--label=out come'",
    ]
    assert page.shared_flags({Row(label="a"): [None]}) == []
    noise = {"dp_target_epsilon": 8.0, "dp_noise_multiplier": 0.7}
    private = _results(tmp_path / "three", **noise)
    flags = page.shared_flags({Row(label="a"): [private]})
    assert "--dp_target_epsilon=8.0" in flags and len(flags) == 4
    text = page.render(outcomes, ["", "loss"], [["a", "1"]], ["Mean."], [])
    assert "--standardize=true &#x27;--label=out come&#x27;</code>" in text
    assert "<dt>rounds</dt><dd>10</dd>" in text and "<p>Mean.</p>" in text


def test_differing_flags_have_the_value_of_every_row(tmp_path):
    settings = [
        {"total_rounds": 9, "features": None, "algo": "fedavg", "seed": 1},
        {"total_rounds": 6, "features": "age,job", "proximal_strength": 0.1},
        {"total_rounds": 4, "standardize": False, "features": None, "memory_size": 3},
    ]
    names = ["one", "two", "three"]
    runs = {
        name: _results(tmp_path / name, **each)
        for name, each in zip(names, settings, strict=True)
    }
    outcomes = {Row(label=name): [None, each] for name, each in runs.items()}
    expected = ["--total_rounds (9, 6, 4)", "--features (unset, age,job, unset)"]
    assert page.differing_flags(outcomes) == [
        "--standardize (true, true, false)",
        *expected,
    ]
    failed = {**outcomes, Row(label="failed"): [None]}
    assert "--total_rounds (9, 6, 4, -)" in page.differing_flags(failed)
    same = {Row(label="a"): [runs["one"]], Row(label="b"): [runs["one"]]}
    assert page.differing_flags(same) == []
    assert page.differing_flags({Row(label="a"): [None]}) == []


def test_a_flag_that_two_rows_have_with_other_values_differs(tmp_path):
    weak = _results(tmp_path / "weak", proximal_strength=0.1)
    strong = _results(tmp_path / "strong", proximal_strength=1.0)
    outcomes = {
        Row(label="fedavg"): [_results(tmp_path / "fedavg")],
        Row(label="weak"): [weak],
        Row(label="strong"): [strong],
    }
    assert page.differing_flags(outcomes) == ["--proximal_strength (-, 0.1, 1.0)"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["fedavg", "uga"], "Comparison on mnist: fedavg, uga"),
        (
            ["x" * 70, "fedavg", "uga", "afl"],
            f"Comparison on mnist: {'x' * 70}, fedavg",
        ),
        (["x" * 90, "fedavg"], f"Comparison on mnist: {'x' * 90} and 1 more"),
    ],
)
def test_the_title_has_the_dataset_and_the_first_rows(tmp_path, labels, expected):
    results = _results(tmp_path)
    found = page.title({Row(label=label): [results] for label in labels})
    assert found.removesuffix(" and 2 more") == expected


def test_runs_on_different_datasets_have_none_in_the_title(tmp_path):
    results = [_results(tmp_path / name, dataset=name) for name in ("mnist", "emnist")]
    outcomes = {Row(label=each.dataset): [each] for each in results}
    assert page.title(outcomes) == "Comparison: mnist, emnist"
    assert page.facts(outcomes)["task"] == "emnist, mnist"
    assert page.shared_subject({Row(label="a"): [None]}) is None


def test_an_attack_on_all_runs_is_in_the_title(tmp_path):
    attack = {"attack": "scale:10", "malicious_clients": "0.05"}
    attacked = [_results(tmp_path / name, **attack) for name in "ab"]
    outcomes = {Row(label=str(seed)): [run] for seed, run in enumerate(attacked)}
    flags = "--attack=scale:10 --malicious_clients=0.05"
    assert page.shared_subject(outcomes) == f"mnist under {flags}"
    assert page.title(outcomes) == f"Comparison on mnist under {flags}: 0, 1"
    weaker = _results(tmp_path / "c", **attack | {"attack": "scale:2"})
    sampled = _results(tmp_path / "e", **attack, malicious_every_round=False)
    assert (
        page.attack_flags(sampled.settings) == f"{flags} --malicious_every_round=false"
    )
    for other in (weaker, sampled, _results(tmp_path / "d")):
        mixed = {**outcomes, Row(label="other"): [other]}
        assert page.shared_subject(mixed) == "mnist"


@pytest.mark.parametrize(
    ("labels", "settings", "expected"),
    [
        (
            ["fedavg", "fedavg (b)"],
            [{}, {"attack": "scale:10"}],
            ["fedavg", "fedavg (b) under scale:10"],
        ),
        (
            ["fedavg", "fedavg under scale:10"],
            [{}, {"attack": "scale:10"}],
            ["fedavg", "fedavg under scale:10"],
        ),
        (
            ["a", "b malicious_clients=0.2"],
            [
                {"attack": "scale:10", "malicious_clients": "0.05"},
                {"attack": "scale:10", "malicious_clients": "0.2"},
            ],
            ["a under malicious_clients=0.05", "b malicious_clients=0.2"],
        ),
        (["a", "b"], [{"attack": "scale:10"}] * 2, ["a", "b"]),
        (
            ["lr=0.1", "lr=0.2"],
            [
                {"attack": "scale:10", "malicious_clients": "0.1"},
                {"attack": "scale:10", "malicious_clients": "0.2"},
            ],
            [
                "lr=0.1 under malicious_clients=0.1",
                "lr=0.2 under malicious_clients=0.2",
            ],
        ),
        (
            ["scale:10", "attack=scale:1"],
            [{"attack": "scale:1"}, {"attack": "scale:10"}],
            ["scale:10 under scale:1", "attack=scale:1 under scale:10"],
        ),
        (["a", "b"], [{"malicious_clients": "0.2"}, {}], ["a", "b"]),
    ],
)
def test_labels_say_the_attack_where_rows_differ_in_it(
    tmp_path, labels, settings, expected
):
    outcomes = {
        Row(label=label): [None, _results(tmp_path / label, **each)]
        for label, each in zip(labels, settings, strict=True)
    }
    labelled = page.with_attacks_in_labels(outcomes)
    assert [row.label for row in labelled] == expected
    assert [*labelled.values()] == [*outcomes.values()]


def test_rows_that_failed_are_under_no_other_attack(tmp_path):
    run = _results(tmp_path / "a", attack="scale:10")
    outcomes = {Row(label="a"): [run], Row(label="b"): [None]}
    assert [*page.with_attacks_in_labels(outcomes)] == [*outcomes]
