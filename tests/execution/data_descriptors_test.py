"""Arguments that stand for data are replaced by the data, as in TFF's own runtime."""

import asyncio

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import execution

FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
IDS = tff.FederatedType(np.int32, tff.CLIENTS)
DATA = tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)


@tff.tensorflow.computation(np.float32)
def _twice(x):
    return 2 * x


@tff.federated_computation(FLOATS)
def _sum_of_twice(values):
    return tff.federated_sum(tff.federated_map(_twice, values))


@tff.tensorflow.computation(np.int32)
def _dataset(client_id):
    numbers = tf.data.Dataset.range(tf.cast(client_id, tf.int64))
    return numbers.map(lambda x: tf.cast(x, tf.float32))


@tff.federated_computation(IDS)
def _datasets(client_ids):
    return tff.federated_map(_dataset, client_ids)


@tff.tensorflow.computation(tff.SequenceType(np.float32), np.float32)
def _total(data, start):
    return data.reduce(start, tf.add)


@tff.federated_computation(DATA, tff.FederatedType(np.float32, tff.SERVER))
def _totals(data, start):
    start = tff.federated_broadcast(start)
    return tff.federated_sum(tff.federated_map(_total, (data, start)))


@pytest.fixture
def context():
    with execution.in_process_context() as context:
        yield context


@pytest.fixture(params=["in_process", "native"])
def either_context(request, native_context):
    if request.param == "native":
        yield native_context
    else:
        with execution.in_process_context() as context:
            yield context


@pytest.mark.usefixtures("either_context")
def test_values_are_those_of_the_descriptor():
    data = tff.framework.DataDescriptor(None, [1.0, 2.0], FLOATS, 2)
    assert _sum_of_twice(data) == 6.0


@pytest.mark.usefixtures("either_context")
def test_a_descriptors_computation_makes_clients_datasets_of_handles():
    data = tff.framework.DataDescriptor(_datasets, [3, 4, 5], IDS, 3)
    # 3 + 6 + 10, and 1 from the server for each client.
    assert _totals(data, 1.0) == 22.0
    nested = tff.framework.DataDescriptor(
        _datasets, tff.framework.DataDescriptor(None, [3, 4], IDS, 2), IDS, 2
    )
    assert _totals(start=0.0, data=nested) == 9.0


@pytest.mark.usefixtures("context")
def test_a_descriptor_may_be_used_where_an_event_loop_runs():
    async def inside():
        data = tff.framework.DataDescriptor(_datasets, [3], IDS, 1)
        return _totals(data, 0.0)

    assert asyncio.run(inside()) == 3.0


@pytest.mark.usefixtures("context")
def test_a_dataset_is_read_only_where_it_is_used():
    once = iter([1.0, 2.0])
    data = tf.data.Dataset.from_generator(
        lambda: once, output_signature=tf.TensorSpec([], tf.float32)
    )
    sequence = tff.SequenceType(np.float32)
    described = tff.framework.DataDescriptor(None, data, sequence)
    assert _total(described, 0.0) == 3.0


@pytest.mark.usefixtures("context")
def test_uris_are_refused_in_words():
    data = tff.framework.CreateDataDescriptor(
        arg_uris=["one", "two"], arg_type=tff.SequenceType(np.float32)
    )
    with pytest.raises(TypeError, match="found URIs, which need a data backend"):
        _totals(data, 0.0)


def test_the_plan_has_as_many_clients(context):
    _sum_of_twice(tff.framework.DataDescriptor(None, [1.0] * 7, FLOATS, 7))
    assert "7 clients" in context.describe(_sum_of_twice)
