"""A pass read back from its bytes computes what it did before."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.plane_processes import client_pass_of, points, process
from tff_algos.execution import compilation, graph_functions, plan, vectorization
from tff_algos.execution.distributed import pass_records


def _run(client_pass, values):
    tensors = [
        tf.data.experimental.to_variant(v) if isinstance(v, tf.data.Dataset) else v
        for v in values
    ]
    return [t.numpy() for t in graph_functions.build(client_pass.fragment)(*tensors)]


def _inputs(client_pass, data):
    rng = np.random.default_rng(0)
    return [
        data
        if isinstance(port.type_signature, tff.SequenceType)
        else tf.constant(
            rng.normal(size=port.type_signature.shape), port.type_signature.dtype.type
        )
        for port in client_pass.fragment.inputs
    ]


def test_a_training_pass_computes_the_same():
    before = client_pass_of(process("two layers", "momentum"))
    after = pass_records.from_bytes(pass_records.to_bytes(before))
    inputs = _inputs(before, points(7, 0).batch(3))
    for one, other in zip(_run(before, inputs), _run(after, inputs), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [p.placement for p in after.fragment.inputs] == [
        p.placement for p in before.fragment.inputs
    ]
    assert [vectorization.is_sum(each) for each in after.aggregates] == [
        vectorization.is_sum(each) for each in before.aggregates
    ]
    assert len(after.kept) == len(before.kept)


def test_bytes_hold_no_more_than_the_graphs():
    client_pass = client_pass_of(process("linear", "sgd"))
    leaves = {node.leaf for node in client_pass.fragment.nodes}
    leaves |= {each.accumulate for each in client_pass.aggregates}
    graphs = sum(each.graph_def.ByteSize() for each in leaves)
    assert len(pass_records.to_bytes(client_pass)) < 1.2 * graphs + 5000


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_selected_structures_keep_the_order_of_their_names(names):
    table = tff.StructWithPythonType(
        [(name, tff.TensorType(np.float32, [3])) for name in names],
        collections.OrderedDict,
    )

    @tff.tensorflow.computation(table, np.int32)
    def select(rows, key):
        return collections.OrderedDict((n, rows[n][key]) for n in names)

    element = select.type_signature.result

    @tff.tensorflow.computation(tff.SequenceType(element))
    def total(dataset):
        return dataset.reduce(0.0, lambda s, e: s + e["a"] + 10.0 * e["b"])

    @tff.federated_computation(
        tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS),
        tff.FederatedType(table, tff.SERVER),
    )
    def totals(keys, rows):
        limit = tff.federated_value(3, tff.SERVER)
        return tff.federated_map(total, tff.federated_select(keys, limit, rows, select))

    (client_pass,) = [
        step
        for step in compilation.compile_to_plan(totals).steps
        if isinstance(step, plan.ClientPass)
    ]
    after = pass_records.from_bytes(pass_records.to_bytes(client_pass))
    rows = {"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}
    columns = iter([tf.constant(rows[name]) for name in names])
    inputs = [
        tf.constant([0, 2]) if port.type_signature.dtype == np.int32 else next(columns)
        for port in client_pass.fragment.inputs
    ]
    assert _run(after, inputs) == [1.0 + 3.0 + 10 * (4.0 + 6.0)]
