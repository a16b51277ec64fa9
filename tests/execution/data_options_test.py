"""How the runtime reads datasets."""

import pytest
import tensorflow as tf

from tests.testing.leaves import leaf_of
from tff_algos.execution import data_options, graph_contents


def _model_of(dataset):
    """Returns TensorFlow's model of an iterator, which a thread of its own tunes."""
    iterator = iter(dataset)
    next(iterator)
    return tf.data.experimental.get_model_proto(iterator)


def test_no_thread_tunes_what_is_read_plainly():
    dataset = tf.data.Dataset.range(3)
    assert _model_of(dataset).nodes
    with pytest.raises(tf.errors.NotFoundError, match="disable autotune"):
        _model_of(dataset.with_options(data_options.plain()))


def test_loops_over_datasets_read_them_plainly():
    @tf.function
    def work(data):
        dataset = tf.data.experimental.from_variant(data, tf.TensorSpec([], tf.int64))
        return [dataset.reduce(tf.constant(0, tf.int64), lambda a, b: a + b)]

    leaf = leaf_of(work, tf.TensorSpec([], tf.variant)).with_loops
    nodes = list(graph_contents.all_nodes(leaf.graph_def))
    by_name = {node.name: node for node in nodes}
    (start,) = [node for node in nodes if node.op == "MakeIterator"]
    read = by_name[graph_contents.node_name(start.input[0])]
    assert read.attr["serialized_options"].s == data_options.serialized()
