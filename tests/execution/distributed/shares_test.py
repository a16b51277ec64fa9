"""What a worker computes of a share is what one process computes."""

import pickle

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.plane_processes import client_pass_of, points, process
from tff_algos import execution
from tff_algos.execution import (
    client_batches,
    client_passes,
    compilation,
    pass_runner,
    plan,
    row_memory,
)
from tff_algos.execution.client_passes import PassInputs, StreamingPass
from tff_algos.execution.dataflow import Placement
from tff_algos.execution.distributed import pass_records, shares


def _resources():
    return pass_runner.Resources(
        devices=["/device:CPU:0"],
        workers=client_passes.Workers(2),
        cache=client_batches.BatchCache(0),
        row_memory=row_memory.RowMemory(),
        batch_clients=None,
        default_num_clients=0,
        max_kept_bytes=0,
    )


def _inputs(client_pass, datasets):
    rng = np.random.default_rng(0)
    server, clients = {}, {}
    for port in client_pass.fragment.inputs:
        if port.placement is Placement.CLIENTS:
            clients[port] = datasets
        else:
            spec = port.type_signature
            server[port] = tf.constant(rng.normal(size=spec.shape), spec.dtype.type)
    return PassInputs(server, clients, (), len(datasets), 0)


def _replies(client_pass, inputs, units, is_vectorized):
    worker = shares.PassOfWorker(
        pass_records.to_bytes(client_pass), is_vectorized, _resources()
    )
    ports = client_pass.fragment.inputs
    sent = [shares.unit_inputs(inputs, ports, unit) for unit in units]
    server = worker.unpack_server(
        [each.numpy() for port, each in inputs.server.items()]
    )
    return worker.run(server, pickle.loads(pickle.dumps(sent)))


@pytest.fixture(scope="module")
def client_pass():
    return client_pass_of(process("two layers", "momentum"))


@pytest.fixture(scope="module")
def inputs(client_pass):
    return _inputs(client_pass, [points(3 + k, k).batch(2) for k in range(5)])


@pytest.fixture(scope="module")
def expected(client_pass, inputs):
    streaming = StreamingPass(client_pass, ["/device:CPU:0"], row_memory.RowMemory())
    return [
        [v.numpy() for v in streaming.run_client(inputs, position).values]
        for position in range(5)
    ]


def test_clients_one_by_one_have_the_same_bits(client_pass, inputs, expected):
    units = [range(k, k + 1) for k in (3, 0, 4)]
    for unit, reply in zip(
        units, _replies(client_pass, inputs, units, False), strict=True
    ):
        assert reply.failure is None
        for found, value in zip(reply.values, expected[unit.start], strict=True):
            np.testing.assert_array_equal(found, value)


def test_values_of_several_clients_are_added_in_their_order(
    client_pass, inputs, expected
):
    assert shares.are_sums(client_pass)
    (reply,) = _replies(client_pass, inputs, [range(1, 5)], False)
    for found, *each in zip(reply.values, *expected[1:], strict=True):
        np.testing.assert_array_equal(found, ((each[0] + each[1]) + each[2]) + each[3])


def test_clients_at_once_give_their_sum(client_pass, inputs, expected):
    (reply,) = _replies(client_pass, inputs, [range(5)], True)
    for found, *each in zip(reply.values, *expected, strict=True):
        np.testing.assert_allclose(found, np.sum(each, axis=0), rtol=1e-5, atol=1e-6)
    assert 0.0 < reply.reading_seconds < 60.0


def _numbers(text):
    return tf.data.Dataset.from_tensor_slices(text).map(tf.strings.to_number)


@pytest.mark.parametrize(
    ("text", "is_vectorized", "client"),
    [("two", False, 0), ("two", True, 0), ("7", False, 0), ("7", True, None)],
)
def test_a_failure_says_which_client_if_that_is_known_and_why(
    text, is_vectorized, client
):
    data_type = tff.SequenceType(np.float32)

    @tff.tensorflow.computation(data_type)
    def total(dataset):
        def add(total, x):
            return total + tf.gather([0.0, 1.0, 2.0], tf.cast(x, tf.int32))

        return dataset.reduce(0.0, add)

    @tff.federated_computation(tff.FederatedType(data_type, tff.CLIENTS))
    def totals(data):
        return tff.federated_sum(tff.federated_map(total, data))

    (own,) = [
        step
        for step in compilation.compile_to_plan(totals).steps
        if isinstance(step, plan.ClientPass)
    ]
    inputs = _inputs(own, [_numbers(["1", "2"]), _numbers(["1", text])])
    units = [range(1), range(1, 2)]
    good, bad = _replies(own, inputs, units, is_vectorized)
    assert good.failure is None and good.values[0] == 3.0
    assert bad.failure.client == client and text in bad.failure.cause


def test_a_value_that_cannot_be_sent_names_the_client(client_pass):
    spec = (tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int32))
    local = tf.data.Dataset.from_generator(lambda: iter([]), output_signature=spec)
    inputs = _inputs(client_pass, [points(3, 0).batch(2), local])
    with pytest.raises(execution.CannotTravelError, match="Client 1 of 2: the data"):
        shares.unit_inputs(inputs, client_pass.fragment.inputs, range(2))


def test_a_client_that_the_worker_cannot_read_is_named(client_pass):
    spec = (tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int32))
    absent = execution.RecipeDataset(spec, _absent)
    inputs = _inputs(client_pass, [points(3, 0).batch(2), absent, absent])
    (reply,) = _replies(client_pass, inputs, [range(3)], False)
    assert reply.failure.client == 1 and "not in the cache" in reply.failure.cause


def _absent():
    raise OSError("not in the cache")
