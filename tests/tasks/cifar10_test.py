"""The CIFAR-10 task: its stand-in, preprocessing by model, shards, the real data."""

import importlib.util

import numpy as np
import pytest

import tasks
from tasks import cifar10, generated_images, partition
from tasks.task import DataOptions
from tests import conftest
from tff_algos.clients.batching import BatchSpec
from tff_algos.hyperparameters import HyperparameterError


def _load(folder, data="auto", **options):
    return tasks.load_task(
        "cifar10",
        cifar10.Cifar10Options(**options),
        DataOptions(data=data, cache_dir=str(folder)),
    )


def test_the_stand_in_is_divided_among_ten_clients(tmp_path):
    task = _load(tmp_path)
    assert task.dataset_name == "cifar10_generated"
    assert "cifar10.npz" in task.notice and "--data=tff" in task.notice
    assert len(task.train_client_ids) == len(task.eval_client_ids) == 10
    for client_id in task.train_client_ids:
        assert len(task.examples(client_id, "train")[1]) == 500
        assert len(task.examples(client_id, "test")[1]) == 100
    assert len(task.test_examples[1]) == 1000


def test_examples_are_what_the_model_takes(tmp_path):
    task = _load(tmp_path, data="generated")
    spec = BatchSpec(batch_size=4, num_epochs=1)
    dataset = task.client_dataset("client_007", "train", spec)
    assert dataset.element_spec == tuple(task.model.input_spec)
    x, y = next(iter(dataset))
    logits = task.model.predict_on_batch(task.model.initial_weights, x, training=False)
    assert logits.shape == (4, 10) and y.dtype.name == "int32"


def test_channels_are_standardized_by_the_published_numbers():
    images = np.zeros((2, 32, 32, 3), np.uint8)
    images[1] = 255
    found = cifar10.preprocess(images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0, 0, 0], [-2.4291, -2.4183, -2.2214], atol=1e-4)
    np.testing.assert_allclose(found[1, 9, 9], [2.5141, 2.5968, 2.7537], atol=1e-4)


def test_response_normalization_takes_pixels_around_zero(tmp_path):
    images = np.array([[[[0, 51, 255]]]], np.uint8)
    found = cifar10.preprocess_lrn(images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[[[-1.0, -0.6, 1.0]]]], atol=1e-6)


@pytest.mark.parametrize(
    ("model", "num_weights", "preprocess"),
    [
        ("cnn", 1_756_426, cifar10.preprocess),
        ("cnn_lrn", 797_962, cifar10.preprocess_lrn),
        ("lenet", 941_834, cifar10.preprocess),
        ("vgg11", 9_292_938, cifar10.preprocess),
    ],
)
def test_a_model_comes_with_its_preprocessing(model, num_weights, preprocess, tmp_path):
    task = _load(tmp_path, data="generated", model=model)
    assert sum(weight.size for weight in task.model.initial_weights[0]) == num_weights
    expected = preprocess(generated_images.shapes().x_test)
    np.testing.assert_array_equal(task.test_examples[0], expected)


@pytest.mark.parametrize("model", ["lenet", "vgg11"])
def test_normalization_is_an_option_of_the_models_that_have_it(model, tmp_path):
    def num_moving(norm):
        task = _load(tmp_path, data="generated", model=model, norm=norm)
        return sum(weight.size for weight in task.model.initial_weights[1])

    assert num_moving(None) == num_moving("batch") > 1000
    assert num_moving("group") == num_moving("none") == 0


def test_shards_of_the_real_size_have_100_examples_of_one_label():
    labels = np.random.default_rng(0).permutation(np.arange(50_000) % 10)
    parts = partition.divide(labels, partition.parse("shards:5"), seed=0)
    assert [len(part) for part in parts] == [500] * 100
    for part in parts:
        assert set(np.unique(labels[part], return_counts=True)[1] % 100) == {0}


def test_clients_of_shards_are_tested_on_their_own_labels(tmp_path):
    task = _load(tmp_path, data="generated", partition="shards:5")
    for client_id in task.train_client_ids:
        train = task.examples(client_id, "train")[1]
        test = task.examples(client_id, "test")[1]
        assert len(train) == 50 and len(np.unique(train)) <= 5
        assert set(test) <= set(train) and len(test) == 10


def test_settings_have_the_papers_defaults_and_bad_options_are_named():
    assert tasks.get("cifar10").settings == {
        "client_batch_size": 64,
        "client_epochs_per_round": 2,
        "client_learning_rate": 0.05,
        "clients_per_round": 2,
    }
    assert cifar10.Cifar10Options() == cifar10.Cifar10Options(
        model="cnn", partition="iid:10"
    )
    with pytest.raises(HyperparameterError, match="model='vgg'.*one of cnn, cnn_lrn"):
        cifar10.Cifar10Options(model="vgg")
    with pytest.raises(HyperparameterError, match="norm='batch'.*: lenet, vgg11"):
        cifar10.Cifar10Options(model="cnn_lrn", norm="batch")
    with pytest.raises(HyperparameterError, match="partition='dirichlet:0'"):
        cifar10.Cifar10Options(partition="dirichlet:0")


def _real_cifar10(num_train, num_test):
    folder = conftest._data_folder()
    if folder is None or not (folder / "cifar10_jpeg.npz").exists():
        pytest.skip("no real CIFAR-10 (set TFF_ALGOS_TEST_DATA)")
    spec = importlib.util.spec_from_file_location("loader", folder / "loader.py")
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    return loader.cifar10(num_train, num_test)


def test_real_cifar10_is_divided_among_its_clients(tmp_path):
    (x_train, y_train), (x_test, y_test) = _real_cifar10(3000, 600)
    np.savez(
        tmp_path / "cifar10.npz",
        x_train=x_train,
        y_train=y_train[:, np.newaxis],
        x_test=x_test,
        y_test=y_test[:, np.newaxis],
    )
    task = _load(tmp_path, partition="dirichlet:0.5:20")
    assert task.data_source == "tff" and task.notice is None
    np.testing.assert_array_equal(task.test_examples[1], y_test)
    parts = [task.examples(client_id, "train") for client_id in task.train_client_ids]
    np.testing.assert_array_equal(
        sum(np.bincount(y, minlength=10) for _, y in parts), np.bincount(y_train)
    )
    pixels = np.concatenate([x.reshape(-1, 3) for x, _ in parts])
    np.testing.assert_allclose(pixels.mean(0), 0.0, atol=0.05)
    # The published deviations are means of single images' own, hence smaller.
    np.testing.assert_allclose(pixels.std(0), 1.23, atol=0.08)
