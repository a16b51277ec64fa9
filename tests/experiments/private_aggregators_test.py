"""Private aggregation: exact clipping, the noise's deviation, what is refused, runs."""

import inspect
import re

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models.normalized import build_tiny_nn
from tests.testing import tiny_task
from tff_algos import experiments
from tff_algos.experiments import (
    catalog,
    declarations,
    launch,
    private_aggregators,
    report,
)
from tff_algos.experiments.launch_options import Launch
from tff_algos.experiments.private_aggregators import Guarantee
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.privacy import NoisyRounds

TASK = tiny_task.make()
SIZE = 4000


def _aggregate(noise_multiplier, clip, values, weights=None):
    rounds = NoisyRounds(
        noise_multiplier=noise_multiplier,
        num_clients=100,
        clients_per_round=len(values),
    )
    factory = private_aggregators.build(Guarantee(rounds, 1e-5), clip)
    value_type = tff.TensorType(np.float32, [SIZE])
    process = factory.create(value_type, tff.TensorType(np.float32))
    weights = weights or [1.0] * len(values)
    output = process.next(process.initialize(), values, list(map(np.float32, weights)))
    return output.result


def test_updates_are_clipped_to_the_norm_and_weigh_alike():
    long = np.zeros(SIZE, np.float32)
    long[0] = 8.0
    short = np.zeros(SIZE, np.float32)
    short[1] = 0.5
    found = _aggregate(1e-9, "2", [long, short], [1.0, 5.0])
    np.testing.assert_allclose(found[:3], [1.0, 0.25, 0.0], atol=1e-6)


def test_the_noise_has_the_deviation_that_was_asked_for():
    zeros = [np.zeros(SIZE, np.float32)] * 5
    found = _aggregate(1.5, "2", zeros)
    # Of the sum 1.5 * 2, of the mean a fifth of it.
    assert np.std(found) == pytest.approx(1.5 * 2 / 5, rel=0.05)
    assert abs(np.mean(found)) < 4 * 0.6 / np.sqrt(SIZE)


def test_a_learned_norm_works_with_few_clients():
    values = [np.full(SIZE, 1 / np.sqrt(SIZE), np.float32)] * 3
    found = _aggregate(2.0, "adaptive", values)
    # The first norm is 0.1; 2 / sqrt(1 - 1/4) of it is added to the sum.
    assert np.std(found) == pytest.approx(0.2 / np.sqrt(0.75) / 3, rel=0.05)


@pytest.mark.parametrize("text", ["0", "-1", "median", "inf", "nan"])
def test_norms_that_mean_nothing_are_refused(text):
    with pytest.raises(HyperparameterError, match="dp_clip.*number > 0 or adaptive"):
        private_aggregators.clip_norm(text)


def test_a_norm_is_a_number_or_learned():
    assert private_aggregators.clip_norm("0.5") == 0.5
    assert private_aggregators.clip_norm("adaptive") is None


@pytest.mark.parametrize(
    ("algo", "reason"),
    [
        ("fedmgda_plus", "its server sees every client's update"),
        ("gradma", "its server keeps every client's update"),
        ("mifa", "its server keeps every client's update"),
        ("scaffold", "control variates"),
    ],
)
def test_algorithms_whose_server_sees_more_are_refused_with_the_reason(algo, reason):
    title = re.escape(catalog.get(algo).title)
    expected = f"dp='central' cannot be used with {title}: .*{reason}"
    chosen = {"dp": "central", "dp_noise_multiplier": 1.0}
    with pytest.raises(HyperparameterError, match=expected):
        declarations.resolve_pair(declarations.load(), algo, "mnist", chosen)


def test_algorithms_with_the_flags_have_an_aggregator_to_replace():
    for recipe in catalog.RECIPES:
        has_flags = "dp" in recipe.hyperparameters()
        is_private = not recipe.not_private and recipe.name != "centralized"
        assert has_flags == is_private, recipe.name
        if has_flags:
            arguments = inspect.signature(recipe.build).parameters
            assert "model_aggregator" in arguments, recipe.name


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"dp": "central"}, "dp_noise_multiplier or --dp_target_epsilon"),
        ({"dp_noise_multiplier": 1.0}, "cannot be used without --dp"),
        ({"dp_target_epsilon": 8.0}, "cannot be used without --dp"),
        ({"dp_clip": "1"}, "dp_clip='1' cannot be used without --dp"),
        ({"dp_delta": 1e-6}, "dp_delta=1e-06 cannot be used without --dp"),
        (
            {"dp": "central", "dp_noise_multiplier": 1.0, "aggregator": "median"},
            "aggregator='median'.*privacy needs a sum",
        ),
        (
            {"dp": "central", "dp_noise_multiplier": 1.0, "dp_target_epsilon": 8.0},
            "dp_target_epsilon",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(chosen, message):
    with pytest.raises(HyperparameterError, match=message):
        catalog.get("fedavg").resolve("mnist", {}, chosen)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return experiments.run(
        "fedavg",
        TASK,
        output_dir=tmp_path_factory.mktemp("run"),
        total_rounds=3,
        clients_per_round=4,
        sampling="poisson",
        dp="central",
        dp_clip="1.0",
        dp_target_epsilon=5.0,
        dp_delta=1e-3,
        client_learning_rate=0.5,
        personalization_epochs=0,
        rounds_per_eval=0,
    )


def test_epsilon_is_a_column_and_reaches_its_target(result):
    rounds = result.spec.guarantee.rounds
    expected = [rounds.epsilon(n, 1e-3) for n in (1, 2, 3)]
    np.testing.assert_allclose(result.metrics["epsilon"], expected)
    assert expected[-1] == pytest.approx(5.0, rel=1e-2)
    assert rounds.sampling == "poisson" and rounds.num_clients == 8


def test_the_summary_and_the_table_say_it(result):
    private = result.summary["privacy"]
    assert private["epsilon"] == pytest.approx(5.0, rel=1e-2)
    assert private["delta"] == 1e-3
    table = report.results_table("A run", result.summary)
    assert "privacy of a client, (epsilon, delta)" in table


def test_the_noise_is_among_what_a_run_resumes_with(result):
    noise = float(result.spec.hyperparameters["dp_noise_multiplier"])
    rounds = result.spec.guarantee.rounds
    assert noise == pytest.approx(rounds.noise_multiplier, rel=1e-4)


def test_clients_that_take_part_in_every_round_have_no_such_epsilon():
    with pytest.raises(HyperparameterError, match="malicious_every_round=True.*--dp"):
        experiments.run(
            "fedavg",
            TASK,
            clients_per_round=4,
            dp="central",
            dp_noise_multiplier=1.0,
            attack="scale_update:2",
        )


def test_what_an_earlier_run_on_the_same_data_revealed_is_not_counted(result):
    settings = {
        "clients_per_round": 4,
        "dp": "central",
        "dp_noise_multiplier": 1.0,
        "initial_model": str(result.spec.output_dir),
    }
    with pytest.raises(
        HyperparameterError, match="initial_model=.*data of another name.*--dp"
    ):
        experiments.run("fedavg", TASK, **settings)
    other = attrs.evolve(TASK, name="other")
    spec = launch.build_spec(catalog.get("fedavg"), other, settings, Launch())
    start = spec.initial_weights.trainable[0]
    np.testing.assert_array_equal(start, result.weights.trainable[0])


def test_weights_that_cannot_be_clipped_are_refused():
    model = TASK.model
    model = tff.learning.models.FunctionalModel(
        initial_weights=tf.nest.map_structure(
            lambda w: np.asarray(w, np.float64), model.initial_weights
        ),
        predict_on_batch_fn=model.predict_on_batch,
        loss_fn=model.loss,
        metrics_fns=(
            model.initialize_metrics_state,
            model.update_metrics_state,
            model.finalize_metrics,
        ),
        input_spec=model.input_spec,
    )
    task = attrs.evolve(TASK, model=model)
    settings = {"dp": "central", "dp_noise_multiplier": 1.0}
    with pytest.raises(
        HyperparameterError, match=r"dp='central' .* float32 .*float64\.$"
    ):
        experiments.run("fedavg", task, clients_per_round=4, **settings)


def test_statistics_without_noise_are_refused():
    task = attrs.evolve(TASK, model=build_tiny_nn((2, 2, 1), num_classes=3, seed=0))
    settings = {"dp": "central", "dp_noise_multiplier": 1.0}
    with pytest.raises(HyperparameterError, match="without batch normalization"):
        experiments.run("fedavg", task, clients_per_round=4, **settings)
    with pytest.raises(HyperparameterError, match="clients_per_round=10.*at most 8"):
        experiments.run("fedavg", TASK, clients_per_round=10, **settings)
