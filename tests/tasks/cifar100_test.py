"""The CIFAR-100 task: its stand-in, TFF's clients and their images, its options."""

import numpy as np
import pytest

import tasks
from tasks import cifar100, generated_images
from tasks.task import DataOptions, TaskError
from tests.testing import federated_file
from tff_algos.clients.batching import BatchSpec
from tff_algos.hyperparameters import HyperparameterError


def _load(folder, data="auto", seed=0, **options):
    return tasks.load_task(
        "cifar100",
        cifar100.Cifar100Options(**options),
        DataOptions(data=data, cache_dir=str(folder), seed=seed),
    )


def _train_labels(task):
    return [task.examples(client_id, "train")[1] for client_id in task.train_client_ids]


def test_the_stand_in_is_divided_among_a_hundred_clients_unevenly(tmp_path):
    task = _load(tmp_path)
    assert task.dataset_name == "cifar100_generated"
    for wanted in ("cifar100.npz", "cifar100.sqlite", "--data=tff"):
        assert wanted in task.notice
    assert task.train_client_ids == task.eval_client_ids
    assert len(task.train_client_ids) == 100
    labels = _train_labels(task)
    assert (
        sum(map(len, labels)) == 5000 and len(np.unique(np.concatenate(labels))) == 100
    )
    # Uniform clients of 50 examples would have about 40 classes each.
    assert np.mean([len(np.unique(own)) for own in labels]) < 25
    assert len(task.test_examples[1]) == 1000


def test_examples_are_what_the_model_takes(tmp_path):
    task = _load(tmp_path, data="generated", model="cnn")
    spec = BatchSpec(batch_size=4, num_epochs=1)
    dataset = task.client_dataset("client_007", "train", spec)
    assert dataset.element_spec == tuple(task.model.input_spec)
    x, _ = next(iter(dataset))
    logits = task.model.predict_on_batch(task.model.initial_weights, x, training=False)
    assert logits.shape == (4, 100)


def test_channels_are_standardized_by_the_published_numbers():
    images = np.zeros((2, 32, 32, 3), np.uint8)
    images[1] = 255
    found = cifar100.preprocess(images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0, 0, 0], [-1.8968, -1.8973, -1.5967], atol=1e-4)
    np.testing.assert_allclose(found[1, 9, 9], [1.8439, 2.0022, 2.0245], atol=1e-4)


@pytest.mark.parametrize(
    ("options", "num_weights"),
    [
        ({"model": "vgg11"}, 9_304_548),
        ({"model": "vgg11", "norm": "group"}, 9_304_548),
        ({"model": "vgg11", "norm": "none"}, 9_299_044),
        ({}, 1_773_796),
    ],
)
def test_models_have_the_published_sizes(options, num_weights, tmp_path):
    trainable, moving = _load(tmp_path, "generated", **options).model.initial_weights
    assert sum(weight.size for weight in trainable) == num_weights
    assert bool(moving) == (options == {"model": "vgg11"})


def test_pachinko_divides_the_stand_in_as_tff_divides_the_real_one(tmp_path):
    task = _load(tmp_path, partition="pachinko")
    assert "cifar100.sqlite" in task.notice and "--data=tff" in task.notice
    labels = _train_labels(task)
    assert [len(own) for own in labels] == [100] * 50
    groups = [np.sort(np.bincount(own // 5, minlength=20)) for own in labels]
    assert np.mean(groups, axis=0)[-3:].sum() > 60
    for client_id, own in zip(task.train_client_ids, labels, strict=True):
        test = task.examples(client_id, "test")[1]
        assert set(test) <= set(own) and 0 < len(test) <= 20
    other = _load(tmp_path, "generated", seed=1, partition="pachinko")
    assert not np.array_equal(labels[0], _train_labels(other)[0])


# Clients of TFF's file: labels of theirs, of either split.
TRAIN = {"0": [3, 3, 7], "1": [99], "10": [7, 7, 7, 99]}
TEST = {"0": [7, 99, 3], "1": [3, 7]}


def _pixels(split, client_id, number):
    rng = np.random.default_rng([len(split), int(client_id), number])
    return rng.integers(0, 256, (32, 32, 3), np.uint8)


def _write_file(folder, train=TRAIN, test=TEST):
    def split(name, clients):
        return {
            client_id: [
                {
                    "coarse_label": 0,
                    "image": _pixels(name, client_id, number).ravel().tolist(),
                    "label": label,
                }
                for number, label in enumerate(labels)
            ]
            for client_id, labels in clients.items()
        }

    splits = {"train": split("train", train), "test": split("test", test)}
    federated_file.write(folder / "cifar100.sqlite", splits)


@pytest.mark.parametrize("data", ["auto", "tff"])
def test_tffs_clients_have_their_own_images(data, tmp_path):
    _write_file(tmp_path)
    task = _load(tmp_path, data, partition="pachinko", model="cnn")
    assert task.data_source == "tff" and task.notice is None
    assert task.train_client_ids == task.eval_client_ids == ("0", "1", "10")
    for client_id, labels in TRAIN.items():
        x, y = task.examples(client_id, "train")
        np.testing.assert_array_equal(y, labels)
        images = [_pixels("train", client_id, number) for number in range(len(y))]
        np.testing.assert_array_equal(x, cifar100.preprocess(np.stack(images)))
        # The undivided test set has 5 images, 2 for each of 3 clients.
        test = task.examples(client_id, "test")[1]
        assert set(test) <= set(labels) and 1 <= len(test) <= 2
    np.testing.assert_array_equal(task.test_examples[1], [7, 99, 3, 3, 7])
    np.testing.assert_array_equal(
        task.test_examples[0][3], cifar100.preprocess(_pixels("test", "1", 0)[None])[0]
    )


def test_tffs_images_can_be_divided_otherwise(tmp_path):
    _write_file(tmp_path)
    task = _load(tmp_path, partition="iid:4", model="cnn")
    assert task.data_source == "tff" and len(task.train_client_ids) == 4
    labels = _train_labels(task)
    assert [len(own) for own in labels] == [2] * 4
    assert sorted(np.concatenate(labels)) == [3, 3, 7, 7, 7, 7, 99, 99]


@pytest.mark.parametrize("partition", ["pachinko", "iid:2"])
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"test": {}}, "lacks clients of the split train or test"),
        ({"test": {"0": [3, 7]}}, "y_test lacks label 99, which y_train has"),
        ({"test": {"0": [3, 7, 99, 100]}}, "y_test has label 100"),
    ],
)
def test_what_is_wrong_with_tffs_file_is_said(changes, problem, partition, tmp_path):
    _write_file(tmp_path, **changes)
    with pytest.raises(TaskError, match=f"cifar100.sqlite .*{problem}.*--data=generat"):
        _load(tmp_path, partition=partition, model="cnn")


def test_a_users_own_file_comes_first_but_has_no_pachinko_clients(tmp_path):
    _write_file(tmp_path)
    arrays = generated_images.tinted_shapes()
    np.savez(
        tmp_path / "cifar100.npz",
        x_train=arrays.x_train[:40],
        y_train=np.arange(40) % 4,
        x_test=arrays.x_test[:8],
        y_test=np.arange(8) % 4,
    )
    task = _load(tmp_path, partition="iid:10", model="cnn")
    assert sum(map(len, _train_labels(task))) == 40
    tffs = _load(tmp_path, partition="pachinko", model="cnn")
    assert tffs.train_client_ids == ("0", "1", "10")


def test_settings_have_defaults_and_bad_options_are_named():
    assert tasks.get("cifar100").settings["client_batch_size"] == 20
    assert cifar100.Cifar100Options() == cifar100.Cifar100Options(
        model="cnn", partition="dirichlet:0.1"
    )
    for partition in ("dirichlet", "pachinko:3"):
        with pytest.raises(
            HyperparameterError, match=f"partition='{partition}'.*one of|pachinko, iid"
        ):
            cifar100.Cifar100Options(partition=partition)
    with pytest.raises(HyperparameterError, match="norm='batch'.*: vgg11"):
        cifar100.Cifar100Options(model="cnn", norm="batch")
