"""What a client's data hold: their type, and what is read of them."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.one_client import CLIENT, MODEL
from tff_algos.clients.client_data import ClientDataFields

BATCHES = tff.SequenceType(
    (tff.TensorType(np.float64, [None, 5]), tff.TensorType(np.float64, [None]))
)
ROW = (tf.TensorSpec([2], tf.float32),)


def test_batches_alone_have_no_names():
    assert ClientDataFields().type(MODEL).is_equivalent_to(BATCHES)
    read = ClientDataFields().read(CLIENT.batches(2))
    assert read.batches is read.full_pass
    assert (read.client_index, read.num_examples, read.row) == (None, None, None)


def test_data_sets_stand_beside_the_batches_in_one_order():
    fields = ClientDataFields(
        memory=ROW, full_pass=True, num_examples=True, client_index=True
    )
    data_type = fields.type(MODEL)
    assert tff.structure.name_list(data_type) == [
        "examples",
        "client_index",
        "num_examples",
        "full_pass",
        "memory",
    ]
    assert data_type["memory"].is_equivalent_to(
        tff.SequenceType([tff.TensorType(np.float32, [2])])
    )
    assert data_type["full_pass"].is_equivalent_to(BATCHES)


def test_data_sets_of_one_element_are_read_as_that():
    data = collections.OrderedDict(
        examples=CLIENT.batches(2),
        client_index=tf.data.Dataset.from_tensors(np.int32(3)),
        num_examples=tf.data.Dataset.from_tensors(np.int64(5)),
        memory=tf.data.Dataset.from_tensors((np.array([1, 2], np.float32),)),
    )
    read = ClientDataFields().read(data)
    assert (read.client_index.numpy(), read.num_examples.numpy()) == (3, 5)
    np.testing.assert_array_equal(read.row[0], [1, 2])
    assert read.full_pass is data["examples"]


def test_an_empty_index_is_that_of_no_client():
    data = collections.OrderedDict(
        examples=CLIENT.batches(2),
        client_index=tf.data.Dataset.from_tensors(np.int32(3)).take(0),
    )
    assert ClientDataFields().read(data).client_index.numpy() == -1


def test_a_memory_without_a_row_is_zeros():
    rows = tf.data.Dataset.from_tensor_slices((np.ones((1, 2), np.float32),)).take(0)
    data = collections.OrderedDict(examples=CLIENT.batches(2), memory=rows)
    np.testing.assert_array_equal(ClientDataFields().read(data).row[0], [0, 0])
