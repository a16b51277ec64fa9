"""The MNIST task: its stand-in, its pixels, shards of labels, the real data."""

import importlib.util

import numpy as np
import pytest

import tasks
from tasks import generated_images, mnist
from tasks.task import DataOptions, TaskError
from tests import conftest
from tff_algos.clients.batching import BatchSpec
from tff_algos.hyperparameters import HyperparameterError


def _load(folder, data="auto", **options):
    return tasks.load_task(
        "mnist",
        mnist.MnistOptions(**options),
        DataOptions(data=data, cache_dir=str(folder)),
    )


def test_the_stand_in_is_divided_among_a_hundred_clients(tmp_path):
    task = _load(tmp_path)
    assert task.dataset_name == "mnist_generated"
    assert "mnist.npz" in task.notice and "--data=tff" in task.notice
    assert len(task.train_client_ids) == len(task.eval_client_ids) == 100
    for client_id in ("client_000", "client_099"):
        assert len(task.examples(client_id, "train")[1]) == 60
        assert len(task.examples(client_id, "test")[1]) == 10
    assert len(task.test_examples[1]) == 1000


def test_examples_are_what_the_model_takes(tmp_path):
    task = _load(tmp_path, data="generated", model="2nn")
    spec = BatchSpec(batch_size=10, num_epochs=1)
    dataset = task.client_dataset("client_007", "train", spec)
    assert dataset.element_spec == tuple(task.model.input_spec)
    x, y = next(iter(dataset))
    logits = task.model.predict_on_batch(task.model.initial_weights, x, training=False)
    assert logits.shape == (10, 10) and y.dtype.name == "int32"


def test_ink_is_one():
    images = np.array([[0, 51, 255]], np.uint8)
    found = mnist.preprocess(images)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.float32([[0.0, 0.2, 1.0]]))
    assert mnist.preprocess(generated_images.digits().x_test).mean() < 0.3


@pytest.mark.parametrize("norm", [None, "batch", "group", "none"])
def test_tiny_nn_takes_standardized_images(norm, tmp_path):
    task = _load(tmp_path, data="generated", model="tiny_nn", norm=norm)
    trainable, non_trainable = task.model.initial_weights
    num_weights = 178_110 if norm == "none" else 178_710
    assert sum(weight.size for weight in trainable) == num_weights
    assert bool(non_trainable) == (norm in (None, "batch"))
    expected = (generated_images.digits().x_test / 255.0 - 0.1307) / 0.3081
    np.testing.assert_allclose(task.test_examples[0], expected, atol=1e-5)


def test_two_shards_have_few_labels(tmp_path):
    task = _load(tmp_path, data="generated", partition="shards:2")
    for client_id in task.train_client_ids:
        labels = set(task.examples(client_id, "train")[1])
        assert len(labels) <= 2
        assert set(task.examples(client_id, "test")[1]) <= labels


def test_settings_and_defaults_are_mcmahans():
    assert tasks.get("mnist").settings == {
        "client_batch_size": 10,
        "client_epochs_per_round": 5,
        "client_learning_rate": 0.05,
        "clients_per_round": 10,
    }
    assert mnist.MnistOptions() == mnist.MnistOptions(model="cnn", partition="iid:100")


def test_bad_options_name_the_flag(tmp_path):
    with pytest.raises(HyperparameterError, match="partition='iid' is not valid"):
        mnist.MnistOptions(partition="iid")
    with pytest.raises(HyperparameterError, match="model='vgg'.*one of cnn, 2nn"):
        mnist.MnistOptions(model="vgg")
    with pytest.raises(HyperparameterError, match="norm='group'.*have it: tiny_nn"):
        mnist.MnistOptions(norm="group")
    with pytest.raises(TaskError, match="--partition=iid:6001 needs 6001 .* has 6000"):
        _load(tmp_path, data="generated", partition="iid:6001")


def _real_mnist():
    folder = conftest._data_folder()
    if folder is None or not (folder / "mnist.npz").exists():
        pytest.skip("no real MNIST (set TFF_ALGOS_TEST_DATA)")
    spec = importlib.util.spec_from_file_location("loader", folder / "loader.py")
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    return loader.mnist()


def test_real_mnist_is_divided_among_its_clients(tmp_path):
    (x_train, y_train), (x_test, y_test) = _real_mnist()
    np.savez(
        tmp_path / "mnist.npz",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
    )
    task = _load(tmp_path, partition="iid:100")
    assert task.data_source == "tff" and task.notice is None
    assert task.dataset_name == "mnist"
    np.testing.assert_array_equal(task.test_examples[1], y_test)
    np.testing.assert_allclose(task.test_examples[0][..., 0] * 255.0, x_test, atol=1e-4)
    parts = [task.examples(client_id, "train") for client_id in task.train_client_ids]
    assert {len(y) for _, y in parts} == {len(y_train) // 100}
    np.testing.assert_array_equal(
        sum(np.bincount(y, minlength=10) for _, y in parts), np.bincount(y_train)
    )
    ink = np.mean([x.mean() for x, _ in parts])
    # 0.1307 is the published mean of the training images.
    assert ink == pytest.approx(0.1307, abs=0.001)
    assert len(task.examples("client_042", "test")[1]) == 100
