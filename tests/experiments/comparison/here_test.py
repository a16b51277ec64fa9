"""Recipes and loaded tasks are compared in this process, with the numbers of `run`."""

import inspect
import types

import attrs
import numpy as np
import pytest

import tasks
from tasks.models import by_shape
from tff_algos.experiments import catalog, compare, run
from tff_algos.experiments.comparison import here, rows
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.errors import RunError

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)
IDS = np.arange(60) % 4
SHORT = {
    "total_rounds": 1,
    "client_learning_rate": 0.1,
    "client_batch_size": 4,
    "personalization_epochs": 0,
}


@pytest.fixture(scope="module")
def task():
    return tasks.from_arrays(X, Y, IDS, name="my points", model="linear")


@pytest.fixture(scope="module")
def recipe():
    fed_prox = catalog.get("fedprox", catalog.ALGORITHMS)
    return attrs.evolve(fed_prox, name="pulled", title="Pulled FedAvg")


def _losses(comparison):
    return {
        row.label: [results.rows[-1]["eval/loss"] for results in of]
        for row, of in comparison.outcomes.items()
    }


def test_a_recipe_and_a_task_have_the_numbers_of_their_runs(task, recipe, tmp_path):
    found = compare(
        "fedavg",
        recipe,
        task=task,
        grid={"proximal_strength": [0.0, 3.0]},
        seeds=1,
        output_dir=tmp_path / "comparison",
        **SHORT,
    )
    alone = run(
        recipe, task, output_dir=tmp_path / "run", proximal_strength=3.0, **SHORT
    ).metrics["eval/loss"]
    losses = _losses(found)
    assert list(losses) == [
        "fedavg",
        "pulled proximal_strength=0.0",
        "pulled proximal_strength=3.0",
    ]
    # Without a pull it is FedAvg; with one it stays nearer to the initial model.
    assert losses["pulled proximal_strength=0.0"] == losses["fedavg"]
    assert losses["pulled proximal_strength=3.0"] == [alone[-1]]
    assert losses["fedavg"][0] < alone[-1] < np.log(2)
    assert found.folder == tmp_path / "comparison"
    done = found.folder / "fedavg+seed=0" / "done.flags"
    assert "--task=my points\n" in done.read_text()


@pytest.fixture
def launched(monkeypatch):
    """Replaces runs; yields what they are called with, and the signal that stops them."""
    called = types.SimpleNamespace(
        settings=[], stopped_by=None, learned_nothing=False, warning=None
    )

    def run_nothing(*arguments, **settings):
        called.settings.append(settings)
        if settings.get("total_rounds") == 2:
            raise ValueError("the weights are gone")
        return called

    monkeypatch.setattr(here.launch, "run", run_nothing)
    return called


def test_a_run_that_raises_fails_alone(launched, task, tmp_path):
    program = here.ProgramHere.of_objects((), task)
    common = ["--algo=fedavg", "--task=my points", "--seed=3"]
    folder = f"--output_dir={tmp_path}"
    log = tmp_path / "log.txt"
    assert program([*common, "--total_rounds=2", folder], log) == 1
    assert log.read_text().endswith("ValueError: the weights are gone\n")
    assert program([*common, "--total_rounds=1", folder], log) == 0
    last = launched.settings[-1]
    assert (last["seed"], last["total_rounds"]) == (3, 1)
    assert (last["output_dir"], last["runtime"]) == (str(tmp_path), "in_process")


def test_a_run_that_learned_nothing_fails_as_on_the_command_line(
    launched, task, tmp_path
):
    launched.learned_nothing, launched.warning = True, "Every round was rejected."
    program = here.ProgramHere.of_objects((), task)
    log = tmp_path / "log.txt"
    arguments = ["--algo=fedavg", "--task=my points", f"--output_dir={tmp_path}"]
    assert program(arguments, log) == 1
    assert log.read_text() == "Every round was rejected.\n"


def test_a_run_that_a_signal_stopped_stops_the_comparison(launched, task, tmp_path):
    launched.stopped_by = 2
    with pytest.raises(KeyboardInterrupt, match="the same call resumes"):
        compare("fedavg", "fedprox", task=task, seeds=3, output_dir=tmp_path)
    assert len(launched.settings) == 1


def test_other_data_of_the_same_name_are_another_run(task, tmp_path):
    settings = {"seeds": 1, "output_dir": tmp_path, **SHORT}
    compare("fedavg", task=task, **settings)
    changed = tasks.from_arrays(X + 1, Y, IDS, name="my points", model="linear")
    with pytest.raises(ComparisonError, match=r"holds another run \(its data\)"):
        compare("fedavg", task=changed, **settings)


def test_tasks_loaded_with_other_options_are_not_each_other_s(launched):
    def made(**options):
        task = tasks.load_task("mnist", data="generated", **options)
        program = here.ProgramHere.of_objects((), task)
        return program.fingerprint, rows.default_folder(
            ["fedavg"], ["--task=mnist"], program.fingerprint
        )

    found = [
        made(),
        made(partition="dirichlet:0.1"),
        made(seed=1),
        made(model="tiny_nn"),
    ]
    assert made() == found[0]
    for each in zip(*found, strict=True):
        assert len(set(each)) == len(found)


def test_a_recipe_whose_code_has_changed_runs_again(task, recipe, tmp_path):
    def losses(built):
        found = compare(built, task=task, seeds=1, output_dir=tmp_path, **SHORT)
        return _losses(found)["pulled"]

    def stronger(*arguments, proximal_strength=0.0, **settings):
        return recipe.build(*arguments, proximal_strength=5.0, **settings)

    stronger.__signature__ = inspect.signature(recipe.build)
    stronger.__doc__ = recipe.build.__doc__
    changed = attrs.evolve(recipe, build=stronger)
    first = losses(recipe)
    assert losses(changed) != first == losses(recipe)
    assert len(list(tmp_path.glob("pulled-*+seed=0"))) == 2


def test_a_file_that_has_changed_is_noticed_though_the_task_is_an_object(tmp_path):
    path = tmp_path / "people.csv"
    settings = {"seeds": 1, "output_dir": tmp_path / "out", **SHORT}
    rows = [f"{number % 7},{number % 2}" for number in range(40)]
    entry = tasks.get(f"csv:{path}")
    for text in (rows, rows):
        path.write_text("\n".join(["age,label", *text]))
        compare("fedavg", task=entry, **settings)
    path.write_text("\n".join(["age,label", *rows[1:]]))
    with pytest.raises(ComparisonError, match=r"holds another run \(its data\)"):
        compare("fedavg", task=entry, **settings)


def test_a_task_that_was_given_another_model_is_another(task):
    other = attrs.evolve(task, model=by_shape.build("mlp", X.shape[1:], 2, 0))
    first, second, again = (
        here.ProgramHere.of_objects((), each).fingerprint
        for each in (task, other, task)
    )
    assert first == again != second


def test_what_objects_cannot_have_is_refused(task, recipe, tmp_path):
    with pytest.raises(ComparisonError, match=r"jobs=2: expected 1 with a recipe or"):
        compare("fedavg", task=task, jobs=2)
    with pytest.raises(ComparisonError, match=r"--data='tff' cannot be used with a ta"):
        compare("fedavg", task=task, data="tff", output_dir=tmp_path)
    with pytest.raises(ComparisonError, match="--task is missing for pulled"):
        compare(recipe)
    taken = attrs.evolve(recipe, name="fedavg")
    with pytest.raises(RunError, match=r"another algorithm fedavg: give the recipe an"):
        compare(taken, task="mnist")
