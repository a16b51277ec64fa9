"""TFF's clients become a task: all examples, or what is wrong with them."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tasks
from tasks.task import TaskError
from tff_algos.hyperparameters import HyperparameterError

X = np.arange(80, dtype=np.float32).reshape(40, 2)
Y = np.arange(40) % 2


def _client_data(sizes):
    return tff.simulation.datasets.TestClientData(
        {
            client_id: collections.OrderedDict(pixels=X[:size], label=Y[:size])
            for client_id, size in sizes.items()
        }
    )


def test_tffs_clients_become_a_task():
    task = tasks.from_client_data(
        _client_data({"ann": 10, "bob": 5}), standardize=False
    )
    assert task.train_client_ids == ("ann", "bob")
    parts = [task.examples("bob", split)[0][:, 0] for split in ("train", "test")]
    assert sorted(np.concatenate(parts)) == X[:5, 0].tolist()


def test_clients_without_examples_and_unknown_keys_are_refused():
    with pytest.raises(TaskError, match="client 'bob' has no examples"):
        tasks.from_client_data(_client_data({"ann": 10, "bob": 0}))
    refused = pytest.raises(HyperparameterError, match="label='z' .* pixels, label")
    with refused:
        tasks.from_client_data(_client_data({"ann": 10}), label="z")
    with pytest.raises(HyperparameterError, match="features='z' .* own_data: pixels"):
        tasks.from_client_data(_client_data({"ann": 10}), features="z")


def test_labels_of_different_shapes_are_refused():
    def dataset(client_id):
        shape = (4, 2) if client_id == "ann" else (4, 3)
        pairs = tf.data.Dataset.from_tensor_slices((X[:4], np.ones(shape, np.int32)))
        return pairs.map(lambda x, y: (x, tf.ensure_shape(y[: tf.size(y)], [None])))

    clients = tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
        ["ann", "bob"], dataset
    )
    with pytest.raises(TaskError, match=r"labels have different shapes, \(2,\) and"):
        tasks.from_client_data(clients)


def test_batches_are_not_taken_for_examples():
    batched = _client_data({"ann": 10}).preprocess(lambda dataset: dataset.batch(4))
    with pytest.raises(TaskError, match=r"client 'ann' .* single examples .*unbatch"):
        tasks.from_client_data(batched)


def test_features_in_several_tensors_are_refused():
    examples = ({"p": X, "q": X}, Y)
    dataset = tf.data.Dataset.from_tensor_slices(examples)
    clients = tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
        ["ann"], lambda _: dataset
    )
    with pytest.raises(
        TaskError, match="features of an element are a dict, expected o"
    ):
        tasks.from_client_data(clients)


def test_keys_that_have_to_be_named_are_missing():
    def data(*keys):
        examples = collections.OrderedDict((key, X) for key in keys)
        return tff.simulation.datasets.TestClientData({"ann": examples})

    with pytest.raises(
        HyperparameterError, match="^features is missing: expected one of .*: x, z"
    ):
        tasks.from_client_data(data("x", "y", "z"))
    with pytest.raises(
        HyperparameterError, match="^label is missing: expected one of .*: x, z"
    ):
        tasks.from_client_data(data("x", "z"))


def test_a_file_that_cannot_be_read_names_its_client(tmp_path):
    path = tmp_path / "ann.txt"
    path.write_text("one\n")
    clients = tff.simulation.datasets.FilePerUserClientData(
        {"ann": str(path)},
        lambda path: tf.data.TextLineDataset(path).map(lambda line: (line, 0)),
    )
    path.unlink()
    with pytest.raises(TaskError, match="'ann' cannot be read: .*No such file"):
        tasks.from_client_data(clients)


def test_what_is_no_client_data_is_refused():
    with pytest.raises(HyperparameterError, match=r"client_data=\[1, 2\] .*ClientData"):
        tasks.from_client_data([1, 2])


@pytest.mark.parametrize("argument", ["features", "label"])
def test_pairs_have_no_keys(argument):
    pairs = tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
        ["ann"], lambda _: tf.data.Dataset.from_tensor_slices((X, Y))
    )
    with pytest.raises(
        HyperparameterError, match=f"{argument}='y' cannot be used with .* pairs"
    ):
        tasks.from_client_data(pairs, **{argument: "y"})
