"""The flags of a run, defined from declarations."""

import attrs
import pytest
from absl import flags

from tff_algos.experiments import declarations, run_flags
from tff_algos.experiments.errors import RunError

WHAT = declarations.load()


@pytest.fixture
def values():
    values = flags.FlagValues()
    run_flags.define(WHAT, values)
    return values


def test_every_setting_has_a_flag_of_its_kind(values):
    assert set(WHAT.users) <= set(values)
    for name, by_user in WHAT.users.items():
        (kind,) = {field.kind for field in by_user.values()}
        expected = {int: "int", float: "float", bool: "bool"}.get(kind, "string")
        assert values[name].flag_type() == expected, name


@pytest.mark.parametrize("name", ["data", "list", "help"])
def test_a_setting_with_the_name_of_another_flag_is_refused(name):
    theirs = attrs.evolve(
        WHAT.algorithms["fedavg"], name="theirs", fields={name: WHAT.run["seed"]}
    )
    what = attrs.evolve(WHAT, algorithms={**WHAT.algorithms, "theirs": theirs})
    message = f"--algo=theirs has the setting {name}, but --{name} is another flag"
    with pytest.raises(RunError, match=message):
        run_flags.define(what, flags.FlagValues())


def test_settings_are_those_that_were_set(values):
    values(["main.py", "--total_rounds=3", "--memory_decay=0.5", "--algo=gradma"])
    assert run_flags.settings_of(values, WHAT) == {
        "total_rounds": 3,
        "memory_decay": 0.5,
    }


def test_an_optional_number_can_be_none_where_a_pair_has_one_by_default(values):
    arguments = ["main.py", "--gradient_clip_norm=none", "--client_learning_rate=0.1"]
    values(arguments)
    settings = run_flags.settings_of(values, WHAT)
    resolved = declarations.resolve_pair(WHAT, "uga", "emnist", settings)
    assert resolved["gradient_clip_norm"] is None
    default = declarations.resolve_pair(WHAT, "uga", "emnist", {})
    assert default["gradient_clip_norm"] == 1.0


def test_a_number_that_is_no_number_is_refused(values):
    with pytest.raises(flags.IllegalFlagValueError, match="--gradient_clip_norm=nope"):
        values(["main.py", "--gradient_clip_norm=nope"])


def test_help_names_the_users_of_a_setting_or_those_without_it(values):
    assert values["memory_decay"].help.endswith("[gradma, gradma_s]")
    assert "[all but" in values["clients_per_round"].help
    assert "[" not in values["seed"].help
    assert values["dp_clip"].help.endswith("[same as --dp]")
    # Others than those of --client_learning_rate have it.
    assert "[as" not in values["client_learning_rate_decay"].help


def test_flags_of_launch_are_defined(values):
    assert set(run_flags.LAUNCH_FLAGS) <= set(values)


def test_declarations_without_modules_are_those_of_the_file():
    assert run_flags.declared() is declarations.load()


def test_flags_are_defined_where_asked_alone(values):
    values(["main.py", "--total_rounds=3"])
    others = flags.FlagValues()
    run_flags.define(WHAT, others)
    others(["main.py"])
    assert others.total_rounds is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ray_workers=x"], "--ray_workers='x' is not valid: expected an integer."),
        (["--list=fedavg"], "--list='fedavg' is not valid: expected True or False."),
        (["--list=5"], "--list='5' is not valid: expected True or False."),
        (["--list fedavg"], "--list fedavg is unknown"),
        (["--total_rounds=x"], "--total_rounds='x' is not valid: expected an integer"),
        (["--dataset=mnist"], "--dataset is unknown, did you mean --task?"),
        (
            ["--TOTAL_ROUNDS=3"],
            "--TOTAL_ROUNDS is unknown, did you mean --total_rounds",
        ),
        (["--algo fedavg"], "--algo fedavg is one word: write --algo=fedavg."),
    ],
)
def test_what_is_wrong_with_a_command_line_is_one_line(values, arguments, message):
    with pytest.raises((flags.Error, ValueError)) as error:
        values(["main.py", *arguments])
    found = run_flags.reason(error.value, WHAT, values, arguments)
    assert found.startswith(message) and "\n" not in found


def test_what_is_wrong_with_a_flag_file_names_it(values, tmp_path):
    path = tmp_path / "mine.flags"
    path.write_text("--total_round=3\n")
    arguments = [f"--flagfile={path}", "--total_rounds=5"]
    with pytest.raises(flags.UnrecognizedFlagError) as error:
        values(["main.py", *arguments])
    found = run_flags.reason(error.value, WHAT, values, arguments)
    assert found.startswith(f"in {path}: --total_round is unknown, did you mean")
