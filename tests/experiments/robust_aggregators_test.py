"""Robust aggregators by name, and names that mean nothing."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import tiny_runs, tiny_task
from tff_algos import aggregators, experiments
from tff_algos.experiments import robust_aggregators
from tff_algos.hyperparameters import HyperparameterError

TASK = tiny_task.make()
NAMES = {
    "median": aggregators.MedianFactory,
    "geometric_median": aggregators.GeometricMedianFactory,
    "trimmed_mean:0.2": aggregators.TrimmedMeanFactory,
    "krum:1": aggregators.KrumFactory,
}
NUMBER = tff.TensorType(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_of_factories(name):
    assert isinstance(robust_aggregators.build(name), NAMES[name])


@pytest.mark.parametrize(("share", "mean"), [("0", 22.0), ("0.2", 3.0)])
def test_the_mean_is_trimmed_by_the_share(share, mean):
    factory = robust_aggregators.build(f"trimmed_mean:{share}")
    process = factory.create(NUMBER, NUMBER)
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    output = process.next(process.initialize(), values, [1.0] * 5)
    np.testing.assert_allclose(output.result, mean)


@pytest.mark.parametrize(
    ("name", "metric"), [("clip", "clipped_count"), ("zeroing", "zeroed_count")]
)
def test_a_run_counts_what_was_too_long(name, metric, tmp_path):
    result = tiny_runs.run(tmp_path, aggregator=name)
    assert any(key.endswith(metric) for key in result.metrics)


def test_without_a_name_it_is_the_mean():
    assert robust_aggregators.build(None) is None


@pytest.mark.parametrize(
    "name",
    ["mean", "median:3", "trimmed_mean", "trimmed_mean:0.5", "krum:x", "krum:-1"],
)
def test_other_names_are_refused_with_the_choices(name):
    with pytest.raises(HyperparameterError, match="aggregator='.*trimmed_mean:S"):
        robust_aggregators.build(name)


def test_a_trimmed_mean_that_leaves_nobody_out_is_refused():
    robust_aggregators.check("trimmed_mean:0.2", 5)
    robust_aggregators.check("trimmed_mean:0.143", 7)
    robust_aggregators.check("trimmed_mean:0", 1)
    with pytest.raises(HyperparameterError, match=r"of at least 0.2 for --cli.*=5: l"):
        robust_aggregators.check("trimmed_mean:0.1", 5)
    with pytest.raises(HyperparameterError, match=r"of at least 0.143 for"):
        robust_aggregators.check("trimmed_mean:0.14", 7)
    with pytest.raises(HyperparameterError, match="at least 3 clients per round, foun"):
        robust_aggregators.check("trimmed_mean:0.4", 2)


def test_krum_needs_enough_clients():
    robust_aggregators.check("krum:2", 7)
    robust_aggregators.check("median", 1)
    with pytest.raises(HyperparameterError, match=r"krum:3.*at most 2 for .*=7"):
        robust_aggregators.check("krum:3", 7)
    with pytest.raises(HyperparameterError, match="at least 3 clients"):
        robust_aggregators.check("krum:0", 2)


def test_a_run_measures_how_many_were_left_out(tmp_path):
    result = tiny_runs.run(tmp_path, aggregator="krum:1")
    assert result.metrics["aggregator/num_left_out"].tolist() == [4, 4]


def test_mimelites_momentum_is_combined_by_the_rule_too(tmp_path):
    attack = {"attack": "scale:100000", "malicious_clients": "0.2"}
    result = tiny_runs.run(tmp_path, algo="mimelite", aggregator="median", **attack)
    first, second = result.metrics["update_norm"]
    # Honest clients add the momentum to every gradient.
    assert second < 2 * first


def test_a_run_that_cannot_be_is_refused_before_it_starts(tmp_path):
    with pytest.raises(HyperparameterError, match="krum:2"):
        tiny_runs.run(tmp_path, aggregator="krum:2")
    with pytest.raises(
        HyperparameterError, match=r"with FedMGDA\+: it has an aggregate"
    ):
        experiments.run("fedmgda_plus", TASK, aggregator="median", output_dir=tmp_path)
