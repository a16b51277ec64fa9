"""Compression by name: what it builds, what it saves, what it does not go with."""

import pytest
import tensorflow_federated as tff

from tests.testing import tiny_runs
from tff_algos import aggregators
from tff_algos.experiments import compressed_sums
from tff_algos.hyperparameters import HyperparameterError

NAMES = {
    "quantize:8": tff.aggregators.EncodedSumFactory,
    "rotate_quantize:4": tff.aggregators.EncodedSumFactory,
    "topk:0.01": aggregators.TopKSumFactory,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_of_factories(name):
    assert isinstance(compressed_sums.build(name), NAMES[name])


def test_without_a_name_nothing_is_compressed():
    assert compressed_sums.build(None) is None


@pytest.mark.parametrize(
    "name", ["quantize", "quantize:0", "quantize:x", "topk:2", "topk", "zip:1", ":8"]
)
def test_other_names_are_refused_with_the_choices(name):
    with pytest.raises(HyperparameterError, match="compression='.*quantize:BITS or"):
        compressed_sums.build(name)


def test_a_run_measures_what_compression_saves(tmp_path):
    whole = tiny_runs.run(tmp_path / "whole")
    half = tiny_runs.run(tmp_path / "half", compression="topk:0.5")
    down, up = (whole.metrics[f"bytes_{way}"] for way in ("down", "up"))
    # Nine weights in float32; five of them with their positions.
    saved = 5 * (9 * 4 - 5 * 8)
    assert half.metrics["bytes_down"].tolist() == down.tolist()
    # Nine weights, and the number of the round.
    assert down.tolist() == [5 * (9 * 4 + 4)] * 2
    assert half.metrics["bytes_up"].tolist() == (up - saved).tolist()
    assert half.summary["bytes_up_per_round"] == up[0] - saved


def test_clipping_goes_around_it(tmp_path):
    result = tiny_runs.run(tmp_path, compression="topk:0.5", aggregator="clip")
    plain = tiny_runs.run(tmp_path / "plain", compression="topk:0.5")
    # The clipped updates' count is sent too.
    assert result.metrics["bytes_up"][0] > plain.metrics["bytes_up"][0]
    assert any(name.endswith("clipped_count") for name in result.metrics)


REFUSED = {
    "looks at every single update": {"aggregator": "median"},
    "longer than the clipping norm": {"dp": "central", "dp_noise_multiplier": 1.0},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_does_not_go_with_it_is_refused_with_the_reason(reason, tmp_path):
    with pytest.raises(HyperparameterError, match=reason):
        tiny_runs.run(tmp_path, compression="quantize:8", **REFUSED[reason])


def test_algorithms_with_an_aggregate_of_their_own_are_refused(tmp_path):
    with pytest.raises(
        HyperparameterError, match=r"with FedMGDA\+: it has an aggregate"
    ):
        tiny_runs.run(tmp_path, "fedmgda_plus", compression="topk:0.1")
