"""What runs a run: settings of a runtime belong to it alone and are checked first."""

import pytest
import tensorflow_federated as tff

from tff_algos import execution
from tff_algos.experiments import launch_options
from tff_algos.experiments.launch_options import Launch
from tff_algos.hyperparameters import HyperparameterError


def test_devices_are_the_in_process_runtimes_alone():
    with pytest.raises(HyperparameterError, match="runtime_devices='CPU:0,CPU:1'"):
        launch_options.set_context(
            Launch(runtime="native", runtime_devices=["CPU:0", "CPU:1"])
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"ray_workers": 2},
            "ray_workers=2 .* with .*=in_process: it belongs to .*=ray",
        ),
        ({"runtime": "native", "ray_address": "a:1"}, "ray_address='a:1' .*=native"),
        (
            {"runtime": "ray", "runtime_devices": ["CPU:0"]},
            "runtime_devices='CPU:0' cannot be used with --runtime=ray",
        ),
        ({"runtime": "ray", "ray_workers": 0}, "ray_workers=0 .*an integer >= 1"),
        ({"runtime": "ray", "ray_workers": "2"}, "ray_workers='2' .*an integer >= 1"),
        ({"runtime": "ray", "ray_workers": True}, "ray_workers=True .*an integer >= 1"),
        (
            {"runtime": "ray", "ray_worker_resources": ["GPU"]},
            "ray_worker_resources='GPU' .*list of NAME:AMOUNT",
        ),
        (
            {"runtime": "ray", "ray_worker_resources": ["CPU:1", "GPU:-1"]},
            "ray_worker_resources='GPU:-1'",
        ),
    ],
)
def test_bad_settings_of_ray_are_refused_before_it_starts(settings, message):
    with pytest.raises(HyperparameterError, match=message):
        launch_options.set_context(Launch(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runtime": "native"}, "runtime='native' .* installs InProcessContext"),
        ({"runtime": "ray"}, "runtime='ray' cannot be used inside of a `with`"),
        ({"runtime_devices": ["CPU:0"]}, "runtime_devices='CPU:0' .* outside of it"),
    ],
)
def test_a_run_inside_of_a_context_cannot_ask_for_another(settings, message):
    with execution.in_process_context() as context:
        launch_options.set_context(Launch())
        assert tff.framework.get_context_stack().current is context
        with pytest.raises(HyperparameterError, match=message):
            launch_options.set_context(Launch(**settings))


def test_a_run_inside_of_an_explanation_uses_the_context_that_it_explains(capsys):
    @tff.tensorflow.computation
    def one():
        return 1

    def run():
        launch_options.set_context(Launch())
        assert one() == 1

    execution.explain(run)
    assert "1. server: 1 leaf" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["lr [0.1]", "a*", "what?", "a\\b"])
def test_results_go_where_tensorflow_can_read_them_again(name):
    with pytest.raises(
        HyperparameterError, match="output_dir=.* TensorFlow reads as pat"
    ):
        Launch(output_dir=name)
    assert Launch(cache_dir=name).cache_dir == name


def test_a_tilde_stands_for_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    launch = Launch(cache_dir="~/cache", output_dir="~/runs/one")
    assert launch.cache_dir == f"{tmp_path}/cache"
    assert launch.output_dir == f"{tmp_path}/runs/one"


@pytest.mark.parametrize("name", ["cache_dir", "output_dir"])
def test_a_path_of_nothing_is_refused(name):
    with pytest.raises(HyperparameterError, match=f"{name}='' .* a path"):
        Launch(**{name: ""})


def test_amounts_of_resources_are_numbers():
    found = launch_options._worker_resources(["CPU:0.5", "GPU:1"])
    assert found == {"CPU": 0.5, "GPU": 1.0}
    assert launch_options._worker_resources(None) is None
