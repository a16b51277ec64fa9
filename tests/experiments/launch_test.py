"""A run as a function: whose settings they are, and what it comes to."""

import json

import numpy as np
import pytest

import tasks
from tasks.task import TaskError
from tests.testing import tiny_task
from tff_algos.experiments import catalogue, launch, plugins
from tff_algos.experiments.launch import Launch
from tff_algos.hyperparameters import HyperparameterError


def test_settings_have_their_users():
    users = launch.users_of(plugins.load())
    assert set(users["seed"]) == {"run"}
    assert set(users["proximal_strength"]) == {
        "--algo=fedprox",
        "--algo=fedproxm",
        "--algo=mgda_prox",
    }
    assert set(users["only_digits"]) == {"--task=emnist"}


def test_settings_go_to_those_who_declare_them():
    options, task_options, settings = launch.resolve(
        catalogue.get("fedprox"),
        tasks.get("emnist"),
        {"seed": 3, "only_digits": True, "proximal_strength": 0.25},
    )
    assert options.seed == 3 and task_options.only_digits
    assert settings["proximal_strength"] == 0.25
    # The task's own default.
    assert settings["client_learning_rate"] == 0.02


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"proximal_strength": 0.5},
            "--algo=fedavg --task=emnist does not use it; it belongs to --algo=fedprox",
        ),
        ({"rat": 0.5}, "rat=0.5 .*does not use it; nobody does"),
        ({"client_learning_rate": 0.0}, "client_learning_rate=0.0 is not valid"),
        ({"model": "vgg"}, "model='vgg' is not valid"),
    ],
)
def test_a_setting_that_is_invalid_or_nobodys_is_refused(settings, message):
    with pytest.raises(HyperparameterError, match=message):
        launch.resolve(catalogue.get("fedavg"), tasks.get("emnist"), settings)


def test_unknown_names_are_refused():
    with pytest.raises(catalogue.UnknownAlgorithmError, match="fedavgg"):
        launch.run("fedavgg", "emnist")
    with pytest.raises(TaskError, match="--task=emist"):
        launch.run("fedavg", "emist")


def test_devices_are_the_in_process_runtimes_alone():
    with pytest.raises(HyperparameterError, match="runtime_devices='CPU:0,CPU:1'"):
        launch.set_context(Launch(runtime="native", runtime_devices=["CPU:0", "CPU:1"]))


def test_a_run_of_a_loaded_task_has_a_row_for_every_round(tmp_path):
    result = launch.run(
        "fedavg",
        tiny_task.make(),
        output_dir=tmp_path,
        total_rounds=2,
        clients_per_round=3,
        client_epochs_per_round=1,
        eval_clients=1,
        personalization_epochs=0,
        rounds_per_eval=2,
    )
    assert result.rounds_done == 2
    np.testing.assert_array_equal(result.metrics["round"], [1, 2])
    np.testing.assert_array_equal(np.isnan(result.metrics["eval/accuracy"]), [1, 0])
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["command"] == "tff_algos.experiments.run"
    assert config["hyperparameters"]["task"] == "tiny"
    assert config["hyperparameters"]["total_rounds"] == 2
    x, _ = tiny_task.make().examples("0", "test")
    kernel, bias = result.weights.trainable
    np.testing.assert_allclose(
        result.keras_model().predict(x, verbose=0), x @ kernel + bias, rtol=1e-5
    )
