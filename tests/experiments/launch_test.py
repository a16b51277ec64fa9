"""A run as a function: the same checks, folder and numbers as the command line's."""

import json

import attrs
import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks.task import Pace, TaskEntry
from tests.testing import problems, tiny_task
from tests.testing.command_line import SMALL, run_here
from tff_algos import experiments
from tff_algos.experiments import catalog, declarations, launch
from tff_algos.experiments.errors import CohortSizeError, RunError
from tff_algos.experiments.launch_options import Launch
from tff_algos.experiments.metrics_log import read_rows
from tff_algos.hyperparameters import HyperparameterError, record

SETTINGS = {
    "total_rounds": 2,
    "rounds_per_eval": 2,
    "eval_clients": 2,
    "personalization_epochs": 1,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return experiments.run(
        "fedavg",
        "adult",
        data="generated",
        output_dir=folder,
        client_learning_rate=0.05,
        **SETTINGS,
    )


def test_it_leaves_the_command_lines_folder_and_numbers(result, tmp_path, capfd):
    arguments = ["--algo=fedavg", "--task=adult", "--client_learning_rate=0.05"]
    finished = run_here(capfd, *arguments, *SMALL, f"--output_dir={tmp_path}")
    assert finished.status == 0

    def numbers(folder):
        rows = read_rows(folder / "metrics.csv")
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    folder = result.spec.output_dir
    assert numbers(folder) == numbers(tmp_path)
    configs = [json.loads((f / "config.json").read_text()) for f in (folder, tmp_path)]
    assert configs[0]["hyperparameters"] == configs[1]["hyperparameters"]
    assert {path.name for path in folder.iterdir()} == {
        path.name for path in tmp_path.iterdir()
    }


def test_only_the_rounds_after_a_warm_start_have_clients(tmp_path):
    experiments.run(
        "fedshare",
        "adult",
        data="generated",
        output_dir=tmp_path,
        warm_start_rounds=1,
        attack="scale_update:2",
        client_dropout=0.01,
        track_improvement=True,
        **SETTINGS,
    )
    first, second = read_rows(tmp_path / "metrics.csv")
    assert (first["stage"], second["stage"]) == ("warm_start", "fedshare")
    assert first["train/num_examples"] > 0
    clients = {"bytes_up", "bytes_down", "improved_clients"}
    assert not clients & set(first) and clients <= set(second)


def test_metrics_are_arrays_by_round(result):
    assert result.rounds_done == 2 and result.stopped_by is None
    losses = result.metrics["train/loss"]
    assert losses.shape == (2,) and losses[1] < losses[0]
    held_out = result.metrics["eval/accuracy"]
    assert np.isnan(held_out[0]) and 0 <= held_out[1] <= 1
    final = result.summary["final_metrics"]["eval/accuracy"]
    np.testing.assert_allclose(held_out[1], final)


def test_the_keras_model_computes_what_the_final_model_does(result):
    task = result.spec.task
    x, y = task.examples(task.eval_client_ids[0], "test")
    weights = (result.weights.trainable, result.weights.non_trainable)
    expected = task.model.predict_on_batch(weights, x[:50], training=False)
    model = result.keras_model()
    np.testing.assert_allclose(model(x[:50]), expected, rtol=1e-6)
    assert len(model.trainable_weights) == len(result.weights.trainable)
    # The weights of the last evaluation: the accuracy follows from them.
    assert len(result.clients) == 2
    client = result.clients[0]
    x, y = task.examples(client.client_id, "test")
    accuracy = np.mean(np.argmax(model.predict(x, verbose=0), -1) == y)
    np.testing.assert_allclose(client.accuracy[0], accuracy, atol=1e-6)


def test_the_plot_shows_loss_and_accuracy(result):
    loss, accuracy = result.plot().axes
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("loss", "accuracy")
    np.testing.assert_allclose(loss.lines[0].get_ydata(), result.metrics["train/loss"])


def test_a_task_that_is_already_loaded_runs(tmp_path):
    task = tiny_task.make()
    num_traces = task.model.predict_on_batch.experimental_get_tracing_count()
    result = experiments.run(
        catalog.get("fedavg"),
        task,
        output_dir=tmp_path,
        clients_per_round=3,
        **SETTINGS,
    )
    assert result.summary["dataset"] == "tiny_generated"
    assert result.metrics["train/num_examples"].min() > 0
    # The task keeps no graphs, so that it may run many times in one process.
    after = task.model.predict_on_batch.experimental_get_tracing_count()
    assert after == num_traces


def test_fewer_clients_than_a_round_has_by_default_all_take_part(tmp_path):
    task = tasks.from_arrays(
        np.arange(40.0).reshape(20, 2), np.arange(20) % 2, partition="iid:3"
    )
    spec = launch.build_spec(
        catalog.get("fedavg"), task, {}, Launch(output_dir=str(tmp_path))
    )
    assert spec.stages[0].clients_per_round == 3
    assert spec.hyperparameters["clients_per_round"] == 3


def test_real_data_of_other_files_are_told_apart_and_generated_ones_by_flags(tmp_path):
    task = tiny_task.make()

    def fingerprint(source, shift):
        def examples(client_id, split):
            x, y = task.examples(client_id, split)
            return x + shift, y

        found = attrs.evolve(task, data_source=source, examples=examples)
        entry = TaskEntry(
            name="tiny",
            summary="Of a file",
            options=object,
            load=lambda *_: found,
            settings={},
        )
        return launch._load(entry, None, 0, Launch(output_dir=tmp_path)).fingerprint

    assert fingerprint("tff", 0) == fingerprint("tff", 0) != fingerprint("tff", 1)
    assert fingerprint("tff", 0).startswith("tiny:")
    assert fingerprint("generated", 0) == ""


def test_krum_needs_enough_of_the_clients_that_there_are(tmp_path):
    task = tasks.from_arrays(
        np.arange(40.0).reshape(20, 2), np.arange(20) % 2, partition="iid:4"
    )
    with pytest.raises(HyperparameterError, match="krum:F with F of at most 0 .*=4"):
        launch.build_spec(
            catalog.get("fedavg"),
            task,
            {"aggregator": "krum:2"},
            Launch(output_dir=tmp_path),
        )


def test_runs_of_one_second_have_folders_of_their_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    spec = launch.build_spec(
        catalog.get("fedavg"), tiny_task.make(), {}, Launch(output_dir="runs/name")
    )
    folders = [launch.with_folder(spec, Launch()).output_dir.name for _ in range(3)]
    assert folders == ["name", "name-2", "name-3"]
    chosen = launch.with_folder(spec, Launch(output_dir="runs/name"))
    assert chosen.output_dir.name == "name"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"epsilon": 0.5},
            "epsilon=0.5 cannot be used with --algo=fedavg --task=adult: ",
        ),
        ({"epsilon": 0.5}, "it belongs to --algo=fedmgda, --algo=fedmgda_plus"),
        ({"no_such": 1}, "no_such=1 cannot be used with .*: nothing has it"),
        ({"client_learning_rat": 1}, r"has it; did you mean client_learning_rate\?$"),
        (
            {"learning_rate": 1},
            "did you mean client_learning_rate or server_learning_rate or personalization_",
        ),
        (
            {"rounds": 1},
            r"did you mean total_rounds or rounds_per_eval or rounds_per_ch",
        ),
        ({"proximal": 1}, r"nothing has it; did you mean proximal_strength\?$"),
        ({"mu": 1}, r"nothing has it\.$"),
        ({"client_learning_rate": "x"}, "client_learning_rate='x' .*a number > 0"),
        ({"attack": 3}, "attack=3 .*expected .*bias:VALUE"),
        ({"aggregator": {}}, "aggregator={} .*expected one of median"),
        ({"compression": 3}, "compression=3 .*expected one of quantize:BITS"),
        ({"initial_model": 3}, "initial_model=3 .*expected a text"),
        (
            {"attack": "scale:2", "malicious_clients": ["9"]},
            r"malicious_clients=\['9'\] .*a share in \(0, 1\] or ids out of phd, non_phd",
        ),
        (
            {"attack": "scale:2", "malicious_clients": 0.5},
            "malicious_cli.*=0.5 .*a text",
        ),
        (
            {"client_optimizer": ["sgd"]},
            r"client_optimizer=\['sgd'\] .*one of sgd, adam",
        ),
        (
            {"runtime": "in-process"},
            "runtime='in-process' .*one of in_process, native, r",
        ),
        ({"data": "real"}, "data='real' .*one of auto, tff, generated"),
        ({"resume": "no"}, "resume='no' .*one of True, False"),
        (
            {"modules": "fed_yogi"},
            r"modules='fed_yogi' .*a list, such as \['fed_yogi'\]",
        ),
        ({"ray_worker_resources": "CPU:2"}, r"resources='CPU:2' .*such as \['CPU:2'\]"),
        (
            {"runtime": "native", "runtime_devices": ["CPU:0"]},
            "runtime_devices='CPU:0'",
        ),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(settings, message, tmp_path):
    with pytest.raises(HyperparameterError, match=message):
        experiments.run("fedavg", "adult", output_dir=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algo", "task", "message"),
    [
        (3, "adult", "algo=3 is not valid: expected a name or a Recipe"),
        (
            "fedavg",
            None,
            "task=None is not valid: expected a name or a Task or a TaskEn",
        ),
    ],
)
def test_algorithms_and_tasks_are_names_or_what_these_stand_for(algo, task, message):
    with pytest.raises(HyperparameterError, match=message):
        experiments.run(algo, task)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"output_dir": 3}, "output_dir=3 .*: expected a path"),
        ({"output_dir": "a\0b"}, r"output_dir='a\\x00b' .*: expected a path"),
        ({"output_dir": "a" * 300}, "output_dir='aaa.*: expected a shorter path"),
        ({"data": np.array(["tff", "auto"])}, "data=.*: expected one of auto, tff"),
    ],
)
def test_an_invalid_launch_option_is_named(settings, message):
    with pytest.raises(HyperparameterError, match=message):
        experiments.run("fedavg", "adult", **settings)


@pytest.mark.parametrize("setting", [{"data": "generated"}, {"cache_dir": "elsewhere"}])
def test_a_loaded_task_keeps_its_data(setting):
    x, y = np.zeros([30, 2]), np.arange(30) % 2
    task = tasks.from_arrays(x, y, client_ids=["a", "b", "c"] * 10)
    message = "cannot be used with a task whose data have been loaded"
    with pytest.raises(HyperparameterError, match=message):
        experiments.run("fedavg", task, **setting)


def test_an_initial_model_may_be_a_path(result, tmp_path):
    again = experiments.run(
        "fedavg",
        "adult",
        data="generated",
        output_dir=tmp_path,
        initial_model=result.spec.output_dir,
        total_rounds=0,
        eval_clients=1,
        personalization_epochs=0,
    )
    for found, start in zip(
        tf.nest.flatten(again.weights), tf.nest.flatten(result.weights), strict=True
    ):
        np.testing.assert_array_equal(found, start)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["hyperparameters"]["initial_model"] == str(result.spec.output_dir)


def test_more_clients_than_there_are_leave_no_folder(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CohortSizeError, match="--clients_per_round=9 is more than"):
        experiments.run("fedavg", tiny_task.make(), clients_per_round=9)
    assert not list(tmp_path.iterdir()) and "Results" not in capfd.readouterr().err


def test_unknown_names_are_told_the_nearest():
    with pytest.raises(catalog.UnknownAlgorithmError, match="did you mean fedavg?"):
        experiments.run("fed_avg", "adult")


def test_settings_go_to_those_who_declare_them():
    options, task_options, settings = launch.resolve(
        catalog.get("fedprox"),
        tasks.get("emnist"),
        {"seed": 3, "only_digits": True, "proximal_strength": 0.25},
    )
    assert options.seed == 3 and task_options.only_digits
    assert settings["proximal_strength"] == 0.25
    # The task's own default.
    assert settings["client_learning_rate"] == 0.02


def test_a_pair_may_have_a_default_of_the_tasks_options():
    entry = tasks.get("mnist")

    def model(algo, **settings):
        _, options, _ = launch.resolve(catalog.get(algo), entry, settings)
        return options.model

    assert model("fedavg") == "cnn"
    # The server remembers an update of every client: hundreds of MB of the CNN's.
    assert model("mifa") == "2nn"
    assert model("mifa", model="cnn") == "cnn"
    found = declarations.resolve_pair(declarations.load(), "mifa", "mnist", {})
    assert found["model"] == "2nn"


@pytest.mark.parametrize(
    ("options", "momentum"),
    [
        ({}, 0.5),
        ({"personalization_momentum": 0.25}, 0.25),
        ({"personalization_optimizer": "sgd"}, 0.0),
        ({"personalization_optimizer": "sgd", "personalization_momentum": 0.25}, 0.25),
    ],
)
def test_fine_tuning_has_the_momentum_of_local_steps(options, momentum, tmp_path):
    spec = launch.build_spec(
        catalog.get("fedavg"),
        tiny_task.make(),
        {"client_momentum": 0.5, "client_learning_rate": 0.5, **options},
        Launch(output_dir=tmp_path),
    )
    start, gradient = (tf.constant([4.0]),), (tf.constant([1.0]),)
    optimizer = spec.personalization_optimizer
    state = optimizer.initialize((tf.TensorSpec([1], tf.float32),))
    state, weights = optimizer.next(state, start, gradient)
    _, weights = optimizer.next(state, weights, gradient)
    assert weights[0].numpy() == 4.0 - 0.5 - 0.5 * (1 + momentum)


@pytest.mark.parametrize(
    ("algo", "chosen", "rate"),
    [
        ("fedsgd", {}, 0.01),
        ("fedsgd", {"personalization_learning_rate": 0.5}, 0.5),
        ("fedavg", {}, 0.01),
        ("fedavg", {"client_learning_rate": 0.25}, 0.25),
    ],
)
def test_fine_tuning_has_the_rate_of_local_steps_or_of_the_task(
    algo, chosen, rate, tmp_path
):
    spec = launch.build_spec(
        catalog.get(algo),
        tasks.get("adult"),
        chosen,
        Launch(data="generated", output_dir=tmp_path),
    )
    optimizer = spec.personalization_optimizer
    state = optimizer.initialize((tf.TensorSpec([1], tf.float32),))
    assert float(optimizer.get_hparams(state)["learning_rate"]) == np.float32(rate)


_LOSS_ALONE = problems.linear_model(np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": _LOSS_ALONE}, "has no metric accuracy, expected loss, accuracy"),
        ({"model": lambda: None}, "its model is <function .*expected a tff.learning.m"),
        ({"train_client_ids": (1, 2)}, "client ids to be distinct texts, found 1"),
        ({"eval_client_ids": ("8", "8")}, "distinct texts, found one twice"),
    ],
)
def test_a_task_of_ones_own_is_checked_before_it_trains(changes, message, tmp_path):
    task = attrs.evolve(tiny_task.make(), **changes)
    with pytest.raises(RunError, match=f"^task tiny: .*{message}"):
        experiments.run("fedavg", task, output_dir=tmp_path)


def test_momentum_of_fine_tuning_needs_sgd():
    with pytest.raises(HyperparameterError, match="personalization_momentum=0.5"):
        experiments.run(
            catalog.get("fedavg"),
            tiny_task.make(),
            personalization_optimizer="adam",
            personalization_momentum=0.5,
        )


@pytest.mark.parametrize(
    ("rounds", "told"), [(0, False), (4, True), (5, False), (9, False)]
)
def test_runs_of_few_rounds_are_told_what_to_expect(rounds, told, tmp_path, capfd):
    @record
    class NoOptions:
        """No options."""

    entry = TaskEntry(
        name="tiny",
        summary="",
        options=NoOptions,
        load=lambda options, data: tiny_task.make(),
        settings={},
        pace=Pace(rounds=5, text="the model learns little."),
    )
    launch.build_spec(
        catalog.get("fedavg"),
        entry,
        {"total_rounds": rounds, "clients_per_round": 2},
        Launch(output_dir=tmp_path),
    )
    assert ("tiny: the model learns little." in capfd.readouterr().err) == told


@pytest.mark.parametrize("name", ["stackoverflow", "tiny_imagenet"])
def test_tasks_that_few_rounds_do_not_teach_say_so_for_the_default_rounds(name):
    default = catalog.get("fedavg").hyperparameters()["total_rounds"].default
    _assert_tells_of_the_default_rounds(tasks.get(name).pace, default)


@pytest.mark.parametrize(
    ("algo", "task"),
    [
        ("maml", "mnist"),
        ("fomaml", "emnist"),
        ("fedsgd", "shakespeare"),
        ("fedsgd", "cifar100"),
        ("uga", "shakespeare"),
    ],
)
def test_pairs_that_few_rounds_do_not_teach_say_so_for_the_default_rounds(algo, task):
    recipe = catalog.get(algo)
    default = recipe.resolve(task, {}, {})["total_rounds"]
    _assert_tells_of_the_default_rounds(recipe.pace(task), default)


@pytest.mark.parametrize(
    ("algo", "task"), [("fedavg", "shakespeare"), ("uga", "mnist")]
)
def test_other_pairs_say_nothing(algo, task):
    assert catalog.get(algo).pace(task) is None


def _assert_tells_of_the_default_rounds(pace, default):
    assert default < pace.rounds
    assert "--" in pace.text and "\n" not in pace.text
