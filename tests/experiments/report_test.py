"""What is printed: aligned tables, of a run, of what there is, of a pair's flags."""

import pytest

from tff_algos.experiments import declarations, report

DECLARED = declarations.load()
FEDAVG, EMNIST = DECLARED.algorithms["fedavg"], DECLARED.tasks["emnist"]

SUMMARY = {
    "rounds": 20,
    "final_metrics": {"train/loss": None, "eval/accuracy": 0.875},
    "personalization": {
        "num_clients": 5,
        "accuracy_by_epoch": [0.5, 0.75],
        "initial_accuracy": 0.5,
        "initial_accuracy_std": 0.125,
        "initial_accuracy_worst_decile": 0.25,
        "initial_accuracy_best_decile": 0.625,
        "personalized_accuracy": 0.75,
        "personalized_accuracy_std": 0.0625,
        "personalized_accuracy_worst_decile": 0.5,
        "personalized_accuracy_best_decile": 1.0,
    },
    "evaluation_clients": 8,
    "improved_clients": 0.9,
    "excluded": {
        "num_rejected_rounds": 2,
        "num_non_finite_clients": 0,
        "num_empty_clients": 3,
    },
    "participations": 60,
    "rounds_per_second": 1.2345,
    "peak_memory_mb": {"python": 900, "runtime_processes": 0},
}


def test_columns_are_as_wide_as_their_widest_word():
    rows = [("a", "bcd", "e"), ("fghi", "j", "")]
    assert report.text_table(rows, indent="> ") == "> a     bcd  e\n> fghi  j"


def test_the_table_of_a_run_has_its_numbers():
    lines = report.results_table("A title", SUMMARY).splitlines()
    assert lines[:2] == ["", "A title"]
    found = {}
    for line in lines[2:]:
        label, _, value = line.strip().rpartition("  ")
        found[label.strip()] = value.strip()
    assert found["rounds"] == "20"
    assert found["training loss, last round"] == "none"
    assert found["held-out accuracy, all examples"] == "87.50 %"
    assert found["clients evaluated"] == "5 of 8"
    assert found["initial accuracy, mean (std) over clients"] == "50.00 % (12.50 %)"
    assert found["personalized accuracy, mean (std) over clients"] == "75.00 % (6.25 %)"
    assert found["clients no worse off, mean over rounds"] == "90.00 %"
    assert found["rounds rejected"] == "2 of 20"
    assert found["num empty clients"] == "3"
    assert not any("not finite" in label for label in found)
    assert found["rounds per second"] == "1.23"
    assert found["peak memory"] == "900 MB"
    label = "sent to workers and received per round"
    assert label not in found
    traffic = {"bytes_to_workers_per_round": 1.5e6, "bytes_from_workers_per_round": 2e7}
    table = report.results_table("A title", SUMMARY | traffic)
    assert label in table and "1.5 MB, 20 MB" in table


def test_the_catalog_has_a_line_for_each():
    text = report.catalog([FEDAVG], [EMNIST])
    assert f"  fedavg  {FEDAVG.summary}\n" in text
    assert f"  emnist  {EMNIST.summary}\n" in text


def test_the_catalog_fits_a_terminal():
    text = report.catalog(DECLARED.algorithms.values(), DECLARED.all_tasks, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "with respect to\n                       the weights before\n" in text


def _values(text):
    """The flags that a list shows, with their values."""
    flags = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    return dict(flag.removeprefix("--").split("=", 1) for flag in flags)


def test_a_pairs_flags_have_the_pairs_defaults():
    text = report.settings(
        DECLARED, "fedavg", "emnist", [("data", "auto", "Where from."), ("x", True, "")]
    )
    assert "\nFedAvg (McMahan" in text and "\nemnist (EMNIST" in text
    found = _values(text)
    expected = {
        "client_learning_rate": "0.02",
        "clients_per_round": "5",
        "seed": "0",
        "model": "cnn",
        "only_digits": "false",
        "attack": "",
        "data": "auto",
        "x": "true",
    }
    assert {name: found[name] for name in expected} == expected
    # Every flag that the pair can take.
    users = {"run", "--algo=fedavg", "--task=emnist"}
    usable = {name for name, by_user in DECLARED.users.items() if users & set(by_user)}
    assert found.keys() == usable | {"data", "x"}


@pytest.mark.parametrize(
    ("algo", "task", "present", "absent"),
    [
        ("uga", None, {"server_learning_rate": "1.0", "seed": "0"}, "model"),
        (None, "adult", {"model": "linear", "seed": "0"}, "server_learning_rate"),
    ],
)
def test_an_algorithm_or_a_task_may_be_listed_alone(algo, task, present, absent):
    found = _values(report.settings(DECLARED, algo, task))
    assert present.items() <= found.items()
    assert absent not in found


def test_a_task_alone_tells_what_it_gives_to_algorithms():
    text = report.settings(DECLARED, None, "emnist")
    assert "Defaults that it gives to algorithms: --client_batch_size=20, " in text


def test_tables_of_the_readme_have_a_row_for_each():
    builders = {"fedavg": "build_fed_avg"}
    lines = report.markdown_tables([FEDAVG], [EMNIST], builders).splitlines()
    assert lines[2] == (
        f"| `fedavg` | {FEDAVG.title} | {FEDAVG.summary} | `build_fed_avg` "
        f"| {FEDAVG.paper} |"
    )
    assert lines[-1] == (
        f"| `emnist` | {EMNIST.summary} | cnn, cnn_dropout, 2nn, cnn_dense_dropout |"
    )


def test_help_is_wrapped_to_the_width_of_a_terminal():
    for columns in (60, 80, 120):
        text = report.settings(DECLARED, "fedavg", "emnist", (), columns)
        of_flags = [line for line in text.splitlines() if line.startswith(" ")]
        assert max(map(len, of_flags)) <= columns
        wide = report.settings(DECLARED, "fedavg", "emnist")
        assert text.split() == wide.split()


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(3, "3 B"), (1610, "1.61 kB"), (999_900, "1000 kB"), (33.8e6, "33.8 MB")],
)
def test_bytes_have_three_digits_and_a_unit(num_bytes, shown):
    assert report._size(num_bytes) == shown
