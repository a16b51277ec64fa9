"""Compression by name: what it builds, what it saves, what it does not go with."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import tiny_runs
from tff_algos import aggregators, execution
from tff_algos.experiments import compressed_sums
from tff_algos.hyperparameters import HyperparameterError

SIZE = 2048


def _error_and_bytes(name):
    """Of the sum of one client's numbers, of which one is an outlier."""
    numbers = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    numbers[7] = 1000.0
    process = compressed_sums.build(name).create(tff.TensorType(np.float32, [SIZE]))
    with execution.measured_communication() as meter:
        result = process.next(process.initialize(), [numbers]).result
    return np.square(result - numbers).mean(), meter.total.bytes_up


def test_names_say_how_sums_are_compressed():
    names = ("quantize:8", "quantize:4", "rotate_quantize:4", "topk:0.01", "topk:1")
    errors, sent = zip(*map(_error_and_bytes, names), strict=True)
    # Half the bits, half the bytes; and a rotation takes away the outlier's share.
    assert sent[1] == pytest.approx(sent[0] / 2, rel=0.05)
    assert errors[0] < errors[1] / 10 and errors[2] < errors[1] / 10
    # A number in 4 bytes and its position in 4.
    assert sent[3:] == (8 * 21, 8 * SIZE) and errors[4] == 0.0 < errors[3]
    assert isinstance(compressed_sums.build("topk:0.01"), aggregators.TopKSumFactory)


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
