"""Functions of a chunk of clients: with an axis of clients, summed or one by one."""

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.leaves import digits, leaf_of, mean_of_doubles, passes_of
from tff_algos.execution import chunk_functions, tracing
from tff_algos.execution.vectorization import NotVectorizableError

CPU = "/device:CPU:0"
SCALAR = tf.TensorSpec([], tf.float32)


def map_clients(leaf, *tensors, stacked):
    def run(*tensors):
        return chunk_functions.map_clients(leaf, tf.constant(3), tensors, stacked)

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    return tracing.trace(run, specs)(*tensors)


def test_clients_values_are_stacked_and_the_servers_shared():
    leaf = leaf_of(lambda x, y: [x * y, x + 1], SCALAR, SCALAR)
    found = map_clients(
        leaf, tf.constant([1.0, 2.0, 3.0]), tf.constant(10.0), stacked=[True, False]
    )
    np.testing.assert_array_equal(found[0], [10, 20, 30])
    np.testing.assert_array_equal(found[1], [2, 3, 4])


@pytest.mark.parametrize("num_clients", [1, 3])
def test_clients_tensors_are_read_as_they_are_and_not_copied(num_clients):
    specs = [tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int32)]
    # A client's own gather remains.
    leaf = leaf_of(lambda x, i: [tf.gather(x, i), x * 2], *specs)

    def run(*tensors):
        clients = tf.shape(tensors[0])[0]
        return chunk_functions.map_clients(leaf, clients, tensors, [True, True])

    any_number = [tf.TensorSpec([None, *s.shape], s.dtype) for s in specs]
    function = tracing.concrete_function(run, any_number)
    x = tf.reshape(tf.range(2.0 * num_clients), [num_clients, 2])
    picked, doubled = function(x, tf.range(num_clients) % 2)
    np.testing.assert_array_equal(picked, [0.0, 3.0, 4.0][:num_clients])
    np.testing.assert_array_equal(doubled, 2 * x)
    copies = [
        op
        for tensor in function.graph.inputs
        for op in tensor.consumers()
        if op.type == "GatherV2" and "leaf" not in op.name and op.outputs[0].consumers()
    ]
    # What is left was made before vectorization, for one client.
    assert not [op for op in copies if "/pfor/" in op.name]


def test_work_without_outputs_gives_nothing():
    assert map_clients(leaf_of(list), stacked=[]) == []


def test_an_op_without_a_vectorized_form_is_told():
    leaf = leaf_of(lambda x: [tf.unique(x).y], tf.TensorSpec([2], tf.float32))
    with pytest.raises(NotVectorizableError, match="Unique"):
        map_clients(leaf, tf.ones([3, 2]), stacked=[True])


def test_the_first_of_pfors_errors_is_told():
    """Not the error of its report, which looks for the Python lines of imported ops."""
    images, filters = tf.ones([3, 1, 4, 4, 1]), tf.ones([3, 2, 2, 1, 1])
    specs = [
        tf.TensorSpec(tensor.shape[1:], tf.float32) for tensor in (images, filters)
    ]
    leaf = leaf_of(lambda x, w: [tf.nn.conv2d(x, w, 1, "SAME")], *specs)
    reason = "^Input \"filter\" of op 'Conv2D' expected to be loop invariant$"
    with pytest.raises(NotVectorizableError, match=reason):
        map_clients(leaf, images, filters, stacked=[True, True])


def test_sums_are_added_and_other_aggregates_take_clients_one_by_one():
    (of_sums,), (in_order,) = passes_of(mean_of_doubles), passes_of(digits)
    add = chunk_functions.build_accumulate(of_sums.aggregates, CPU)
    # The clients' values come summed: of the doubles, and of the weights.
    totals = add(*map(tf.constant, (10.0, 1.0, 12.0, 3.0)))
    assert [float(total) for total in totals] == [22.0, 4.0]
    fold = chunk_functions.build_accumulate(in_order.aggregates, CPU)
    (total,) = fold(tf.constant(9.0), tf.constant([1.0, 2.0, 3.0]))
    assert float(total) == 9123.0
