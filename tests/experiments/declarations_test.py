"""The file of declarations says what the code declares.

`python -m tests.experiments.declarations_test` writes it anew.
"""

import pytest

from tff_algos.experiments import declarations, plugins
from tff_algos.experiments.declarations import RUN
from tff_algos.hyperparameters import REQUIRED, HyperparameterError


def _live():
    return plugins.declare(plugins.own())


def test_the_file_says_what_the_code_declares():
    assert declarations.FILE.read_text() == declarations.to_json(_live()), (
        "write it anew: python -m tests.experiments.declarations_test"
    )


def test_what_is_written_is_read():
    live = _live()
    read = declarations.from_json(declarations.to_json(live))
    assert list(read.algorithms) == list(live.algorithms)
    assert declarations.to_json(read) == declarations.to_json(live)
    local_rows = read.algorithms["gradma"].fields["local_rows"]
    assert local_rows.kind is tuple and isinstance(local_rows.default, tuple)
    assert REQUIRED not in {f.default for f in read.run.values()}


def test_settings_have_their_users():
    users = declarations.load().users
    assert set(users["seed"]) == {RUN}
    assert set(users["proximal_strength"]) == {
        "--algo=fedprox",
        "--algo=fedproxm",
        "--algo=mgda_prox",
    }
    assert set(users["only_digits"]) == {"--task=emnist"}


@pytest.mark.parametrize(
    ("algo", "task", "expected"),
    [
        ("fedavg", "emnist", {"client_learning_rate": 0.02, "clients_per_round": 5}),
        # The pair's own value comes before the algorithm's, that before the task's.
        ("fedsgd", "shakespeare", {"server_learning_rate": 1.0, "total_rounds": 50}),
        ("fedsgd", "emnist", {"server_learning_rate": 0.3, "model": "cnn", "seed": 0}),
    ],
)
def test_a_pair_has_its_defaults(algo, task, expected):
    found = declarations.resolve_pair(declarations.load(), algo, task, {})
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "vgg"}, "model='vgg' is not valid: expected one of cnn, "),
        ({"server_momentum": 1.0}, r"server_momentum=1.0 .*in \[0, 1\)"),
        ({"q": 1.0}, "q=1.0 cannot be used with .*: it belongs to --algo=qfedavg"),
        (
            {"client_steps_per_round": 3, "client_epochs_per_round": 2},
            "client_steps_per_round=3 .*with --client_epochs_per_round=2, which it replaces",
        ),
    ],
)
def test_settings_are_checked_without_the_code(settings, message):
    with pytest.raises(HyperparameterError, match=message):
        declarations.resolve_pair(declarations.load(), "fedavgm", "emnist", settings)


def test_none_removes_what_replaces_another_setting():
    settings = {"client_steps_per_round": None, "client_epochs_per_round": 2}
    found = declarations.resolve_pair(declarations.load(), "fedavg", "mnist", settings)
    assert found["client_steps_per_round"] is None
    assert found["client_epochs_per_round"] == 2


@pytest.mark.parametrize(
    ("algo", "task", "message"),
    [
        ("fedavgg", "mnist", "--algo=fedavgg is unknown, did you mean fedavg"),
        ("fedavg", "mnits", "--task=mnits is unknown, did you mean mnist"),
    ],
)
def test_unknown_names_are_told_the_nearest(algo, task, message):
    with pytest.raises(declarations.UnknownNameError, match=message):
        declarations.resolve_pair(declarations.load(), algo, task, {})


if __name__ == "__main__":
    declarations.FILE.write_text(declarations.to_json(_live()))
