"""Devices are named in full or by kind; one line names those there are."""

import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import execution

CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32)
def _double(x):
    return 2 * x


@tff.federated_computation(CLIENT_FLOATS)
def _mean_of_doubles(x):
    return tff.federated_mean(tff.federated_map(_double, x))


@pytest.mark.parametrize("device", ["GPU:99", "TPU:0", "nonsense", "CPU:7", ""])
def test_an_unknown_device_is_one_line_that_names_those_there_are(device):
    with pytest.raises(execution.UnknownDeviceError) as raised:
        execution.InProcessContext(runtime_devices=[device])
    message = str(raised.value)
    assert "CPU:0" in message
    assert repr(device) in message
    assert "\n" not in message


def test_no_devices_are_an_error():
    with pytest.raises(execution.UnknownDeviceError, match="at least one.*CPU:0"):
        execution.InProcessContext(runtime_devices=[])


def test_devices_may_be_tensorflows_own():
    (first, *_) = tf.config.list_logical_devices("CPU")
    for device in (first, "/CPU:0"):
        context = execution.InProcessContext(runtime_devices=[device])
        with tff.framework.get_context_stack().install(context):
            assert _mean_of_doubles([1.0, 2.0]) == 3.0


def test_devices_may_be_named_in_full_and_by_kind():
    for names in (["CPU:0"], ["cpu:0"], ["/device:CPU:0"], ["CPU:*"]):
        with execution.in_process_context(runtime_devices=names):
            assert _mean_of_doubles([1.0, 2.0]) == 3.0


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_gpus_in_use_or_split_into_logical_devices_stay_as_they_are(error, monkeypatch):
    def refuse(*_):
        raise error("cannot")

    def gpus(kind):
        return [types.SimpleNamespace(name="GPU:0")] if kind == "GPU" else []

    monkeypatch.setattr(tf.config, "list_physical_devices", gpus)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", refuse)
    with execution.in_process_context(runtime_devices=["CPU:0"]):
        assert _mean_of_doubles([1.0, 2.0]) == 3.0
