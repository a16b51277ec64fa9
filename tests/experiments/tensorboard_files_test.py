"""TensorBoard's tabs beside the scalars: settings, flags and plots of a run."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from tff_algos.experiments import tensorboard_files

_HYPERPARAMETERS = {
    "algo": "fedavg",
    "client_learning_rate": 0.1,
    "total_rounds": 3,
    "track_improvement": False,
    "attack": None,
    "local_rows": ("server", "drift"),
}


def _events(directory):
    found = EventAccumulator(
        str(directory / "tensorboard"), size_guidance={"tensors": 0}
    )
    return found.Reload()


@pytest.fixture
def events(tmp_path):
    tensorboard_files.write_settings(
        tmp_path, _HYPERPARAMETERS, ["main.py", "--algo=fedavg"]
    )
    return _events(tmp_path)


def test_the_hparams_tab_has_every_setting(events):
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data
    data = plugin_data_pb2.HParamsPluginData.FromString(content.content)
    found = data.session_start_info.hparams
    assert found.keys() == _HYPERPARAMETERS.keys()
    assert found["algo"].string_value == "fedavg"
    assert found["client_learning_rate"].number_value == 0.1
    assert found["track_improvement"].bool_value is False
    assert found["attack"].string_value == ""
    content = events.summary_metadata["_hparams_/experiment"].plugin_data
    data = plugin_data_pb2.HParamsPluginData.FromString(content.content)
    names = {each.name.tag for each in data.experiment.metric_infos}
    assert {"eval/accuracy", "train/loss"} <= names


def test_the_text_tab_has_the_flags_and_the_command(events):
    def text(tag):
        return tf.make_ndarray(events.Tensors(tag)[0].tensor_proto).item().decode()

    assert "| `client_learning_rate` | 0.1 |" in text("flags")
    assert text("command") == "`main.py --algo=fedavg`"


def test_the_text_tab_has_the_flags_of_a_run_that_resumed(tmp_path):
    for rounds_done, total in ((0, 3), (3, 5)):
        settings = {**_HYPERPARAMETERS, "total_rounds": total}
        tensorboard_files.write_settings(tmp_path, settings, "a text", rounds_done)
    # In the order of files, which is not that of writing.
    written = sorted(_events(tmp_path).Tensors("flags"), key=lambda event: event.step)
    assert [event.step for event in written] == [0, 3]
    texts = [tf.make_ndarray(event.tensor_proto).item().decode() for event in written]
    for text, total in zip(texts, (3, 5), strict=True):
        assert f"| `total_rounds` | {total} |" in text


def test_the_images_tab_has_the_plots(tmp_path):
    pixels = np.zeros((3, 5, 3), np.uint8)
    pixels[1, 2] = (255, 0, 7)
    path = tmp_path / "fairness.png"
    Image.fromarray(pixels).save(path)
    tensorboard_files.write_plots(tmp_path, [path], 12)
    (event,) = _events(tmp_path).Tensors("plots/fairness")
    width, height, encoded = tf.make_ndarray(event.tensor_proto)
    assert event.step == 12
    assert (int(width), int(height)) == (5, 3)
    np.testing.assert_array_equal(tf.io.decode_png(encoded), pixels)
