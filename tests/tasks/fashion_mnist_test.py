"""The Fashion-MNIST task: its stand-in, shards of labels, its options."""

import numpy as np
import pytest

import tasks
from tasks import fashion_mnist, generated_images, partition
from tasks.task import DataOptions, TaskError
from tff_algos.clients.batching import BatchSpec
from tff_algos.hyperparameters import HyperparameterError


def _load(folder, data="auto", **options):
    return tasks.load_task(
        "fashion_mnist",
        fashion_mnist.FashionMnistOptions(**options),
        DataOptions(data=data, cache_dir=str(folder)),
    )


def test_the_stand_in_is_divided_among_a_hundred_clients_of_few_labels(tmp_path):
    task = _load(tmp_path)
    assert task.dataset_name == "fashion_mnist_generated"
    assert "fashion_mnist.npz" in task.notice and "--data=tff" in task.notice
    assert len(task.train_client_ids) == len(task.eval_client_ids) == 100
    for client_id in task.train_client_ids:
        train = task.examples(client_id, "train")[1]
        test = task.examples(client_id, "test")[1]
        assert len(train) == 60 and len(np.unique(train)) <= 5
        assert set(test) <= set(train) and len(test) == 10
    assert len(task.test_examples[1]) == 1000


def test_shards_of_the_real_size_have_120_examples_of_one_label():
    labels = np.random.default_rng(0).permutation(np.arange(60_000) % 10)
    spec = partition.parse(fashion_mnist.FashionMnistOptions().partition)
    parts = partition.divide(labels, spec, seed=0)
    assert [len(part) for part in parts] == [600] * 100
    for part in parts:
        assert set(np.unique(labels[part], return_counts=True)[1] % 120) == {0}


def test_examples_are_what_the_model_takes(tmp_path):
    task = _load(tmp_path, data="generated")
    spec = BatchSpec(batch_size=4, num_epochs=1)
    dataset = task.client_dataset("client_007", "train", spec)
    assert dataset.element_spec == tuple(task.model.input_spec)
    x, y = next(iter(dataset))
    logits = task.model.predict_on_batch(task.model.initial_weights, x, training=False)
    assert logits.shape == (4, 10) and y.dtype.name == "int32"


def test_pixels_are_standardized_by_the_published_numbers():
    images = np.zeros((2, 28, 28, 1), np.uint8)
    images[1] = 255
    found = fashion_mnist.preprocess(images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], -0.42421, atol=1e-5)
    np.testing.assert_allclose(found[1], 2.82149, atol=1e-5)


def test_tiny_nn_takes_the_same_images(tmp_path):
    task = _load(tmp_path, data="generated", model="tiny_nn", norm="group")
    trainable, non_trainable = task.model.initial_weights
    assert sum(weight.size for weight in trainable) == 178_710
    assert non_trainable == ()
    expected = fashion_mnist.preprocess(generated_images.letters().x_test)
    np.testing.assert_array_equal(task.test_examples[0], expected)


def test_the_stand_in_is_not_mnists():
    letters, digits = generated_images.letters(), generated_images.digits()
    assert np.any(letters.x_test != digits.x_test)


def test_an_own_file_is_the_real_data_set(tmp_path):
    arrays = generated_images.letters()
    np.savez(
        tmp_path / "fashion_mnist.npz",
        x_train=arrays.x_train[..., 0],
        y_train=arrays.y_train,
        x_test=arrays.x_test[..., 0],
        y_test=arrays.y_test,
    )
    task = _load(tmp_path, partition="iid:10")
    assert task.dataset_name == "fashion_mnist" and task.notice is None
    np.testing.assert_array_equal(task.test_examples[1], arrays.y_test)


def test_settings_have_the_papers_defaults():
    assert tasks.get("fashion_mnist").settings == {
        "client_batch_size": 10,
        "client_epochs_per_round": 1,
        "client_learning_rate": 0.01,
        "clients_per_round": 10,
    }
    assert fashion_mnist.FashionMnistOptions() == fashion_mnist.FashionMnistOptions(
        model="cnn", partition="shards:5"
    )


def test_bad_options_name_the_flag(tmp_path):
    with pytest.raises(HyperparameterError, match="partition='iid' is not valid"):
        fashion_mnist.FashionMnistOptions(partition="iid")
    with pytest.raises(HyperparameterError, match="model='vgg'.*one of cnn"):
        fashion_mnist.FashionMnistOptions(model="vgg")
    with pytest.raises(HyperparameterError, match="norm='none'.*have it: tiny_nn"):
        fashion_mnist.FashionMnistOptions(norm="none")
    with pytest.raises(TaskError, match="--partition=shards:61:100 needs 6100 "):
        _load(tmp_path, data="generated", partition="shards:61")
