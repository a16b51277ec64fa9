"""Clients' values as rows: their order, their structure, and bad input."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.aggregators import GatherFactory


def gather(value_type, values):
    process = GatherFactory().create(tff.to_type(value_type))
    return process.next(process.initialize(), values)


def test_rows_come_in_the_order_of_the_clients():
    rng = np.random.default_rng(0)
    for count in (0, 1, 3, 17):
        values = [rng.normal(size=4).astype(np.float32) for _ in range(count)]
        rows = gather((np.float32, [4]), values).result
        np.testing.assert_array_equal(rows, np.reshape(values, (count, 4)))


def test_ids_and_structures_of_any_types_stay_together():
    value_type = collections.OrderedDict(
        client_id=np.int64, update=(tff.TensorType(np.float64, [2, 2]), np.bool_)
    )
    values = [
        collections.OrderedDict(client_id=n, update=(np.full((2, 2), n / 2), n > 5))
        for n in (7, 3, 9)
    ]
    output = gather(value_type, values)
    np.testing.assert_array_equal(output.result["client_id"], [7, 3, 9])
    matrix, flag = output.result["update"]
    np.testing.assert_array_equal(matrix[:, 1, 0], [3.5, 1.5, 4.5])
    np.testing.assert_array_equal(flag, [True, False, True])
    assert output.measurements == () and output.state == ()


def test_the_types_are_those_of_an_aggregation_process():
    process = GatherFactory().create(tff.to_type((np.float32, [4])))
    assert process.next.type_signature.result.result.is_equivalent_to(
        tff.FederatedType((np.float32, [None, 4]), tff.SERVER)
    )


def test_it_is_wrapped_by_tffs_factories():
    factory = tff.aggregators.clipping_factory(1.0, GatherFactory())
    process = factory.create(tff.to_type((np.float32, [2])))
    values = [np.array([3, 4], np.float32), np.array([0.5, 0], np.float32)]
    rows = process.next(process.initialize(), values).result
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.5, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    "value_type",
    [tff.TensorType(np.float32, [None]), tff.SequenceType(np.float32)],
)
def test_what_has_no_known_shape_is_named(value_type):
    with pytest.raises(TypeError, match=r"tensors of known shape, found"):
        GatherFactory().create(value_type)


def test_more_clients_than_ever_before_need_no_new_process():
    process = GatherFactory().create(tff.to_type(np.float32))
    for count in (2, 5, 1):
        rows = process.next(process.initialize(), [1.5] * count).result
        np.testing.assert_array_equal(rows, np.full(count, 1.5, np.float32))
