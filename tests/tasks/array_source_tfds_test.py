"""Arrays that tensorflow-datasets prepares, or one line says why it cannot."""

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tasks import array_source
from tasks.task import TaskError
from tests.testing import toy_arrays
from tests.testing.toy_arrays import NUM_CLASSES, options


@pytest.fixture
def data_set():
    return toy_arrays.data_set()


def _elements(self, split, decoders=None, read_config=None, shuffle_files=False):
    """Stands for `DatasetBuilder._as_dataset`."""
    del self, decoders, read_config
    assert not shuffle_files
    found = toy_arrays.arrays()
    return tf.data.Dataset.from_tensor_slices(
        {
            "image": found[f"x_{split}"],
            "label": found[f"y_{split}"].astype(np.int64),
        }
    )


class _Toy(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A dataset in tensorflow-datasets that needs no download."""

    VERSION = tfds.core.Version("1.0.0")
    interrupted = False

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(28, 28, 1)),
                    "label": tfds.features.ClassLabel(num_classes=NUM_CLASSES),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        del dl_manager
        return {split: self._generate_examples(split) for split in ("train", "test")}

    def _generate_examples(self, split):
        found = toy_arrays.arrays()
        for i, (x, y) in enumerate(zip(found[f"x_{split}"], found[f"y_{split}"])):
            if self.interrupted and i == 20:
                raise KeyboardInterrupt
            yield i, {"image": x, "label": y}


@pytest.fixture
def toy_builder(monkeypatch):
    """Makes tensorflow-datasets know the toy dataset only; returns its class."""
    pytest.importorskip(
        "importlib_resources", reason="tensorflow-datasets cannot prepare without"
    )
    builder = type("_Toy", (_Toy,), {"name": "toy"}, skip_registration=True)
    monkeypatch.setattr(
        tfds, "builder", lambda name, data_dir: builder(data_dir=data_dir)
    )
    return builder


@attrs.define
class _FailingBuilder:
    """A builder that cannot prepare; `prepared` answers in turn."""

    error: Exception
    prepared: list[bool]
    data_dir: str = "folder/mnist/1.0.0"

    def is_prepared(self):
        return self.prepared.pop(0)

    def download_and_prepare(self):
        raise self.error


class TestTfds:
    def test_tff_reads_what_it_prepares(self, data_set, tmp_path):
        with tfds.testing.mock_data(as_dataset_fn=_elements):
            source, arrays, notice = array_source.load_arrays(
                data_set, options(tmp_path, "tff")
            )
        assert source == "tff" and notice is None
        for name, expected in toy_arrays.arrays().items():
            np.testing.assert_array_equal(getattr(arrays, name), expected)
        assert arrays.x_train.dtype == np.uint8 and arrays.y_train.dtype == np.int32

    def test_its_arrays_are_checked_too(self, data_set, tmp_path):
        two = attrs.evolve(data_set, num_classes=2)
        with (
            tfds.testing.mock_data(as_dataset_fn=_elements),
            pytest.raises(
                TaskError, match=r"cannot read .*mnist.* has label 2.*remove"
            ),
        ):
            array_source.load_arrays(two, options(tmp_path, "tff"))

    def test_auto_does_not_prepare(self, data_set, tmp_path, monkeypatch):
        (tmp_path / "mnist").mkdir()
        builder = _FailingBuilder(AssertionError("downloads"), [False])
        monkeypatch.setattr(tfds, "builder", lambda name, data_dir: builder)
        assert array_source.load_arrays(data_set, options(tmp_path))[0] == "generated"

    @pytest.mark.parametrize(
        "error", [ConnectionError("no\nroute"), ValueError("x"), AssertionError("x")]
    )
    def test_a_failed_download(self, error, data_set, tmp_path, monkeypatch):
        (tmp_path / "mnist").mkdir()
        builder = _FailingBuilder(error, [False, False])
        monkeypatch.setattr(tfds, "builder", lambda name, data_dir: builder)
        with pytest.raises(TaskError) as raised:
            array_source.load_arrays(data_set, options(tmp_path, "tff"))
        message = str(raised.value)
        assert f"cannot download and prepare mnist in {tmp_path}" in message
        assert "no route" in message or "(x)" in message
        assert "put toy.npz" in message and "--data=generated" in message
        assert "\n" not in message

    def test_a_long_reason_is_cut(self, data_set, tmp_path, monkeypatch):
        builder = _FailingBuilder(ValueError("long " * 999), [False])
        monkeypatch.setattr(tfds, "builder", lambda name, data_dir: builder)
        with pytest.raises(TaskError) as raised:
            array_source.load_arrays(data_set, options(tmp_path, "tff"))
        assert len(str(raised.value)) < 700

    def test_another_process_prepared_it_meanwhile(
        self, data_set, tmp_path, monkeypatch
    ):
        (tmp_path / "mnist").mkdir()
        builder = _FailingBuilder(OSError("Directory not empty"), [False, True])
        monkeypatch.setattr(tfds, "builder", lambda name, data_dir: builder)
        monkeypatch.setattr(
            array_source, "_read_splits", lambda builder: toy_arrays.arrays()
        )
        assert array_source.load_arrays(data_set, options(tmp_path, "tff"))[0] == "tff"

    def test_prepared_once_it_is_found(self, data_set, toy_builder, tmp_path):
        toy = attrs.evolve(data_set, tfds_name="toy")
        _, prepared, _ = array_source.load_arrays(toy, options(tmp_path, "tff"))
        source, arrays, notice = array_source.load_arrays(toy, options(tmp_path))
        assert source == "tff" and notice is None
        order = np.argsort(arrays.x_train[:, 0, 0, 0])
        np.testing.assert_array_equal(
            arrays.x_train[order], toy_arrays.arrays()["x_train"]
        )
        np.testing.assert_array_equal(
            arrays.y_train[order], toy_arrays.arrays()["y_train"]
        )
        np.testing.assert_array_equal(arrays.x_train, prepared.x_train)

    def test_an_interrupted_preparation_does_not_pass(
        self, data_set, toy_builder, tmp_path
    ):
        toy = attrs.evolve(data_set, tfds_name="toy")
        toy_builder.interrupted = True
        with pytest.raises(KeyboardInterrupt):
            array_source.load_arrays(toy, options(tmp_path, "tff"))
        assert (tmp_path / "toy").is_dir()
        assert array_source.load_arrays(toy, options(tmp_path))[0] == "generated"
        toy_builder.interrupted = False
        assert array_source.load_arrays(toy, options(tmp_path, "tff"))[0] == "tff"

    def test_a_damaged_preparation_is_an_error(self, data_set, toy_builder, tmp_path):
        toy = attrs.evolve(data_set, tfds_name="toy")
        array_source.load_arrays(toy, options(tmp_path, "tff"))
        (shard,) = tmp_path.glob("toy/1.0.0/*-train.tfrecord*")
        shard.write_bytes(shard.read_bytes()[:-30])
        for data in ("auto", "tff"):
            with pytest.raises(TaskError, match=r"cannot read .*toy.*remove that fold"):
                array_source.load_arrays(toy, options(tmp_path, data))

    @pytest.mark.parametrize("content", [b"", b"garbage", b"{}", b"null", b"\xff"])
    @pytest.mark.parametrize("data", ["auto", "tff"])
    def test_a_damaged_description_is_an_error(self, content, data, data_set, tmp_path):
        path = tmp_path / "mnist" / "3.0.1" / "dataset_info.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        with pytest.raises(TaskError) as error:
            array_source.load_arrays(data_set, options(tmp_path, data))
        message = str(error.value)
        assert message.startswith(f"cannot read {tmp_path / 'mnist'} (")
        assert "remove that folder and use --data=tff" in message
        assert "\n" not in message
