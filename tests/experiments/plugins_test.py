"""Algorithms and tasks of other packages, those of docs/extending.md among them."""

import importlib
import pathlib
import re
import shlex
import sys
import types

import attrs
import pytest

import tasks
import tff_algos
from tests.testing import tiny_task
from tests.testing.command_line import SMALL, run_program
from tff_algos import experiments
from tff_algos.experiments import catalog, declarations, plugins, report, run_flags
from tff_algos.experiments.comparison import command
from tff_algos.experiments.comparison import rows as rows_lib
from tff_algos.experiments.errors import RunError
from tff_algos.hyperparameters import HyperparameterError

_PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "extending.md").read_text()


def _example(first_word: str) -> str:
    """Returns the module on the page whose docstring begins so."""
    pattern = rf'^```python\n("""{first_word}.*?)^```$'
    return re.search(pattern, _PAGE, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def sign_avg(tmp_path, monkeypatch):
    (tmp_path / "sign_avg_package.py").write_text(_example("SignAvg"))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield "sign_avg_package"
    sys.modules.pop("sign_avg_package", None)


def test_an_algorithm_outside_of_the_repository_runs_by_name(sign_avg, tmp_path):
    result = experiments.run(
        "sign_avg",
        "adult",
        modules=[sign_avg],
        data="generated",
        output_dir=tmp_path / "run",
        total_rounds=1,
        client_learning_rate=2.0**-10,
        client_epochs_per_round=1,
        max_elements_per_client=20,
        client_batch_size=20,
        rounds_per_eval=0,
        eval_clients=1,
        personalization_epochs=0,
    )
    assert result.spec.title == "SignAvg on adult_generated"
    assert result.spec.hyperparameters["sign_threshold"] == 0.0
    # One step of the rate in each weight's direction, from zero.
    for weight in result.weights.trainable:
        assert {abs(float(w)) for w in weight.ravel()} <= {0.0, 2.0**-11, 2.0**-10}
    assert any(weight.any() for weight in result.weights.trainable)


def test_the_command_line_takes_a_module_and_its_flags(sign_avg, tmp_path):
    arguments = ["--module=sign_avg_package", "--algo=sign_avg", "--task=adult"]
    environment = {"PYTHONPATH": str(tmp_path)}
    finished = run_program(
        *arguments,
        *SMALL,
        "--sign_threshold=0.001",
        f"--output_dir={tmp_path / 'run'}",
        environment=environment,
    )
    assert finished.status == 0, finished.err
    assert "SignAvg on adult_generated" in finished.out
    listed = run_program(*arguments, "--list", environment=environment)
    assert "--sign_threshold=0.0" in listed.out
    assert "Gradient entries smaller in magnitude count as zero" in listed.out
    flag_file = tmp_path / "sign.flags"
    flag_file.write_text("--module=sign_avg_package\n--sign_threshold=x\n")
    refused = run_program(
        f"--flagfile={flag_file}", *arguments[1:], environment=environment
    )
    assert "sign_threshold" in refused.err and "a number" in refused.err


def test_a_module_is_looked_for_in_the_current_folder_too(tmp_path, monkeypatch):
    (tmp_path / "module_of_this_folder.py").write_text(_example("SignAvg"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert "sign_avg" in plugins.load(["module_of_this_folder"]).algorithms


def test_a_comparison_takes_a_module_and_its_flags(sign_avg):
    words = ["sign_avg", "--module", sign_avg, "--sign_threshold=0.1"]
    values, contenders, common = command.parse(words)
    assert contenders == ["sign_avg"]
    assert values.module == [sign_avg]
    assert "--sign_threshold=0.1" in common


def test_flag_files_in_a_comparison_may_name_a_module(sign_avg, tmp_path):
    lines = [f"--module={sign_avg}", "--algo=sign_avg", "--task=adult"]
    for number in range(2):
        own = [*lines, f"--sign_threshold=0.{number}"]
        (tmp_path / f"row_{number}.flags").write_text("\n".join(own))
    modules = command.modules_of([f"{tmp_path}/*.flags", "--seeds=1"])
    assert modules == (sign_avg,)
    _, contenders, common = command.parse([f"{tmp_path}/*.flags", "--total_rounds=3"])
    declared = run_flags.declared(modules)
    rows = rows_lib.make_rows(contenders, common, [], declared)
    assert [row.label for row in rows] == ["row_0", "row_1"]
    assert f"--module={sign_avg}" in rows[1].arguments
    assert "--sign_threshold=0.1" in rows[1].arguments


@pytest.fixture
def page_modules(tmp_path, monkeypatch):
    (tmp_path / "fed_yogi.py").write_text(_example("FedYogi"))
    (tmp_path / "turned.py").write_text(_example("Two clusters"))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield ["fed_yogi", "turned"]
    for name in ("fed_yogi", "turned"):
        sys.modules.pop(name, None)


def test_the_comparison_on_the_page_has_a_row_of_each_algorithm(page_modules):
    (words,) = re.findall(r"`python main.py compare (.*?)`", _PAGE)
    values, contenders, common = command.parse(words.split())
    assert sorted(values.module) == page_modules
    declared = run_flags.declared(tuple(page_modules))
    rows = rows_lib.make_rows(contenders, common, values.grid, declared)
    assert [row.label for row in rows] == ["fed_yogi", "fedavg"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", re.findall(r"`python main\.py ([^`]*--module=[^`]*)`", _PAGE)
)
def test_every_command_on_the_page_runs(command, page_modules, tmp_path):
    words = shlex.split(command.replace("\n", " "))
    short = [flag for flag in SMALL if not flag.startswith("--data")]
    if words[0] == "compare":
        short.append("--seeds=1")
    out = tmp_path / "out"
    done = run_program(*words, *short, f"--output_dir={out}", cwd=tmp_path)
    assert done.status == 0, done.err
    assert (out / "summary.json").exists() or (out / "table.md").exists()


def test_the_commands_on_the_page_are_found():
    assert _PAGE.count("`python main.py ") == _PAGE.count("--algo=") + 1 == 3


@pytest.mark.parametrize("name", ["dp", "aggregator", "compression"])
def test_what_a_builder_cannot_apply_is_refused(name, page_modules, tmp_path):
    """A run that only said that it was private would be worse than none."""
    with pytest.raises(
        HyperparameterError, match=f"{name}=.* with FedYogi: it has an ag"
    ):
        experiments.run(
            "fed_yogi",
            "turned",
            modules=page_modules,
            output_dir=tmp_path / "run",
            **{name: "central" if name == "dp" else "median"},
        )


def test_an_attack_that_a_client_work_does_not_apply_is_refused(page_modules, tmp_path):
    with pytest.raises(
        HyperparameterError,
        match="attack='scale_update:2' .*calls clients.attacks.sent_u",
    ):
        experiments.run(
            "fed_yogi",
            "turned",
            modules=page_modules,
            output_dir=tmp_path / "run",
            attack="scale_update:2",
        )


def test_the_algorithm_and_the_task_of_the_page_go_together(page_modules, tmp_path):
    result = experiments.run(
        "fed_yogi",
        "turned",
        modules=page_modules,
        output_dir=tmp_path / "run",
        total_rounds=10,
        spread=0.1,
        personalization_epochs=0,
    )
    assert result.spec.title == "FedYogi on turned"
    # So near their centers, a line separates clusters that turn by less than a right angle.
    assert result.metrics["eval/accuracy"][-1] > 0.95


def _recipe(build):
    return experiments.Recipe(
        name="mine", title="Mine", summary="-", paper="-", build=build
    )


def test_the_page_names_what_a_run_gives_to_builders(tmp_path):
    recipe = _recipe(lambda nothing: None)
    with pytest.raises(
        RunError, match="its builder has the argument nothing"
    ) as raised:
        experiments.run(recipe, tiny_task.make(), output_dir=tmp_path)
    given = str(raised.value).rstrip(".").partition("any of ")[2].split(", ")
    rows = re.findall(r"^\| (`.*?`) \| ", _PAGE, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(given)


def test_an_argument_of_a_builder_that_nothing_gives_is_named(tmp_path):
    recipe = _recipe(lambda model: tff_algos.build_fed_avg(model))
    expected = "--algo=mine: its builder has the argument model, expected .*model_fn"
    with pytest.raises(RunError, match=expected):
        experiments.run(recipe, tiny_task.make(), output_dir=tmp_path)


def test_what_a_builder_or_a_loader_must_return_is_said(tmp_path):
    for wrong in (None, {"process": None}):
        recipe = _recipe(lambda model_fn, wrong=wrong: wrong)
        expected = f"--algo=mine: its builder returned {wrong}, expected a tff.learning"
        with pytest.raises(RunError, match=expected):
            experiments.run(recipe, tiny_task.make(), output_dir=tmp_path)
    entry = attrs.evolve(tasks.get("mnist"), name="own", load=lambda *options: None)
    with pytest.raises(RunError, match="--task=own: its load returned None, expected"):
        experiments.run("fedavg", entry, output_dir=tmp_path)


def test_entry_points_are_found(sign_avg, monkeypatch):
    point = importlib.metadata.EntryPoint("theirs", sign_avg, plugins.ENTRY_POINTS)
    monkeypatch.setattr(
        plugins.importlib.metadata, "entry_points", lambda group: [point]
    )
    assert plugins.load().algorithms["sign_avg"].title == "SignAvg"


_RECIPE = """
import attrs
from tff_algos.experiments import catalog
settings = {"mnist": {"client_lerning_rate": 0.1}}
RECIPES = [attrs.evolve(catalog.get("fedavg"), name="mine", settings=settings)]
"""
_ENTRY = """
import attrs
import tasks
settings = {"client_lerning_rate": 0.1}
TASKS = [attrs.evolve(tasks.get("mnist"), name="mine", settings=settings)]
"""
_PARTIAL = """
import attrs, functools
from tff_algos.experiments import catalog
fedavg = catalog.get("fedavg")
build = functools.partial(fedavg.build)
RECIPES = [attrs.evolve(fedavg, name="mine", build=build)]
"""
_OPTIONS = """
import attrs, dataclasses
import tasks
@dataclasses.dataclass
class Options:
    pass
TASKS = [attrs.evolve(tasks.get("mnist"), name="mine", options=Options, settings={})]
"""
_SETTING = """
from typing import Annotated
from tff_algos.experiments import Recipe
from tff_algos.hyperparameters import hparam
def build(model_fn, *, memory_decay: Annotated[int, hparam(low=0)] = 1):
    pass
RECIPES = [Recipe(name="mine", title="Mine", summary="-", paper="-", build=build)]
"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "--module=bad_package has neither RECIPES nor TASKS"),
        ("RECIPES = [1]", "--module=bad_package offers 1, expected a Recipe"),
        ("TASKS = [1]", "--module=bad_package offers 1, expected a TaskEntry"),
        (
            "TASKS = 3",
            "--module=bad_package offers 3, expected a sequence of TaskEntrys",
        ),
        (
            _PARTIAL,
            "--module=bad_package: what mine declares cannot be read: TypeError",
        ),
        (_OPTIONS, "mine declares cannot be read: TypeError: options must be a record"),
        ("1 / 0", "--module=bad_package cannot be imported: ZeroDivisionError"),
        (
            "import tff_algos.experiments.catalog as c; RECIPES = [c.get('fedavg')]",
            "--module=bad_package offers fedavg, which is taken",
        ),
        (
            _RECIPE,
            r"lerning_rate, but no .* has it; did you mean client_learning_rate\?$",
        ),
        (
            _ENTRY,
            "mine has a default for client_lerning_rate, but no algorithm has it",
        ),
        (
            _SETTING,
            "setting memory_decay of the kind int, but .* others has the kind float",
        ),
    ],
)
def test_a_module_that_cannot_be_used_is_named(source, message, tmp_path, monkeypatch):
    (tmp_path / "bad_package.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    sys.modules.pop("bad_package", None)
    with pytest.raises(plugins.ModuleError, match=message):
        plugins.load(["bad_package"])


_REQUIRED = """
from collections.abc import Sequence
from typing import Annotated, Literal
from tff_algos.experiments import Recipe
from tff_algos.hyperparameters import hparam
def build(
    model_fn,
    *,
    rows: Annotated[Sequence[Literal["a", "b"]], hparam()],
    share: Annotated[float, hparam(low=0)],
):
    pass
RECIPES = [Recipe(name="mine", title="Mine", summary="-", paper="-", build=build)]
"""


def test_what_has_to_be_set_is_listed_without_a_value_and_missing_in_a_run(
    tmp_path, monkeypatch
):
    (tmp_path / "required.py").write_text(_REQUIRED)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    declared = plugins.declare(plugins.load(["required"]))
    for task in (None, "mnist"):
        listed = report.settings(declared, "mine", task, [], 100)
        assert "--rows=" in listed and "--share=" in listed
    with pytest.raises(
        HyperparameterError, match="^rows is missing: it has no default"
    ):
        declarations.resolve_pair(declared, "mine", "mnist", {})


@pytest.mark.parametrize(
    ("algo", "task", "message"),
    [
        (
            attrs.evolve(catalog.get("fedavg"), settings={"*": {"total_round": 3}}),
            "mnist",
            "^fedavg has a default for total_round, .* did you mean total_rounds",
        ),
        (
            attrs.evolve(catalog.get("fedavg"), settings={"*": {"eval_clients": 3}}),
            "mnist",
            "^fedavg has a default for eval_clients, but no algorithm or task has it",
        ),
        (
            attrs.evolve(catalog.get("fedavg"), defaults={"clients_per_roun": 3}),
            "mnist",
            "^fedavg has a default for clients_per_roun, .* mean clients_per_round",
        ),
        (
            "fedavg",
            attrs.evolve(tasks.get("mnist"), settings={"eval_clients": 3}),
            "^mnist has a default for eval_clients, but no algorithm has it",
        ),
        (
            "fedavg",
            attrs.evolve(tasks.get("mnist"), settings={"client_lerning_rate": 0.1}),
            "^mnist has a default for client_lerning_rate, but no algorithm has it",
        ),
    ],
)
def test_objects_are_checked_like_a_modules(algo, task, message):
    with pytest.raises(plugins.ModuleError, match=message):
        experiments.run(algo, task)


def test_defaults_on_tasks_of_modules_that_are_not_loaded_are_theirs():
    recipe = attrs.evolve(RECIPE, settings={"turned": {"max_degrees": 30}})
    assert plugins.load(objects=[recipe]).tasks.keys() == tasks.TASKS.keys()
    with pytest.raises(plugins.ModuleError, match="default for max_degrees"):
        plugins.load(objects=[recipe, attrs.evolve(ENTRY, name="turned")])


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(
        plugins.ModuleError, match="--module=nowhere cannot be imported"
    ):
        plugins.load(["nowhere"])
    with pytest.raises(
        plugins.ModuleError, match="write --module=my.own, as in `import`"
    ):
        plugins.load(["my/own.py"])
    with pytest.raises(plugins.ModuleError, match="write --module=own, as in `import`"):
        plugins.load(["./own.py"])
    with pytest.raises(
        plugins.ModuleError, match="write --module=own, as .* its folder .*PYTHONPATH"
    ):
        plugins.load(["../own.py"])


RECIPE = attrs.evolve(catalog.get("fedavg"), name="own_fedavg")
ENTRY = attrs.evolve(tasks.get("mnist"), name="own_mnist")


@pytest.fixture
def module(monkeypatch):
    """Makes a module of a name that can be imported."""

    def make(name, **attributes):
        made = types.ModuleType(name)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, name, made)
        return name

    return make


def test_a_named_module_adds_its_recipes_and_tasks(module):
    name = module("own_module", RECIPES=[RECIPE], TASKS=[ENTRY])
    found = plugins.load([name, name])
    assert found.algorithms["own_fedavg"] is RECIPE
    assert found.tasks["own_mnist"] is ENTRY
    assert found.algorithms.keys() - catalog.ALGORITHMS.keys() == {"own_fedavg"}
    assert found.tasks.keys() - tasks.TASKS.keys() == {"own_mnist"}


def test_without_modules_there_is_what_this_package_has():
    found = plugins.load()
    assert found.algorithms == catalog.ALGORITHMS
    assert found.tasks == tasks.TASKS


def test_what_a_module_offers_is_declared(module):
    name = module("own_module", RECIPES=[RECIPE], TASKS=[ENTRY])
    found = plugins.declare(plugins.load([name]))
    assert found.algorithms["own_fedavg"].title == RECIPE.title
    assert found.tasks["own_mnist"].fields["model"].default == "cnn"
    assert found.run["seed"].help.startswith("Seed of the initial weights")
