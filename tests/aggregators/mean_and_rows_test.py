"""The mean and the rows it is of: NumPy, invalid clients, other factories inside."""

import collections
import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos import execution
from tff_algos.aggregators import MeanAndRowsFactory

VALUE = tff.to_type(
    collections.OrderedDict(
        client_index=np.int32, update=tff.TensorType(np.float64, [2])
    )
)
FLOAT32 = tff.TensorType(np.float32)


@functools.cache
def process_of(inner=None):
    return MeanAndRowsFactory(inner).create(VALUE, FLOAT32)


def one_round(process, updates, weights):
    values = [
        collections.OrderedDict(client_index=k, update=np.asarray(update, np.float64))
        for k, update in updates.items()
    ]
    return process.next(
        process.initialize(), values, [np.float32(weight) for weight in weights]
    )


def test_rows_come_in_the_order_of_the_clients_beside_their_weighted_mean():
    output = one_round(process_of(), {7: (4, 0), 2: (0, 8)}, [1, 3])
    np.testing.assert_allclose(output.result["mean"], (1, 6))
    rows = output.result["rows"]
    assert rows["client_index"].tolist() == [7, 2]
    assert rows["weight"].tolist() == [1, 3]
    np.testing.assert_array_equal(rows["update"], [(4, 0), (0, 8)])
    assert output.measurements["num_non_finite_clients"] == 0


def test_a_client_that_is_not_finite_has_a_row_of_zeros_and_no_weight():
    output = one_round(process_of(), {0: (4, 0), 1: (np.nan, 8), 2: (2, 2)}, [1, 5, 1])
    np.testing.assert_allclose(output.result["mean"], (3, 1))
    rows = output.result["rows"]
    assert rows["client_index"].tolist() == [0, 1, 2]
    assert rows["weight"].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(rows["update"], [(4, 0), (0, 0), (2, 2)])
    assert output.measurements["num_non_finite_clients"] == 1


def test_a_round_without_clients_has_no_rows():
    rows = one_round(process_of(), {}, []).result["rows"]
    assert rows["update"].shape == (0, 2) and rows["client_index"].shape == (0,)


def test_another_factory_makes_the_mean_and_not_the_rows():
    clipped = tff.aggregators.clipping_factory(1.0, tff.aggregators.MeanFactory())
    output = one_round(process_of(clipped), {0: (3, 4), 1: (0, 1)}, [1, 1])
    np.testing.assert_allclose(output.result["mean"], (0.3, 0.9), rtol=1e-6)
    np.testing.assert_array_equal(output.result["rows"]["update"], [(3, 4), (0, 1)])
    assert output.measurements["inner"]["clipped_count"] == 1


def _bytes_up(process):
    with execution.measured_communication() as meter:
        one_round(process, {0: (3, 4), 1: (0, 1)}, [1, 1])
    return meter.total.bytes_up / 2


def test_updates_are_sent_once_unless_another_factory_gets_them_too():
    # An update, its weight and whether it is not finite; besides, what is counted.
    alone = 2 * 8 + 4 + 4
    assert _bytes_up(process_of()) == alone
    clipped = tff.aggregators.clipping_factory(1.0, tff.aggregators.MeanFactory())
    index_and_row_and_weight = 4 + 2 * 8 + 4
    assert _bytes_up(process_of(clipped)) >= alone + index_and_row_and_weight


def test_what_it_cannot_take_is_named():
    with pytest.raises(TypeError, match="WeightedAggregationFactory.*as_weighted"):
        MeanAndRowsFactory(tff.aggregators.SumFactory())
    with pytest.raises(TypeError, match="<client_index=int32, update=...>, found"):
        MeanAndRowsFactory().create(FLOAT32, FLOAT32)
