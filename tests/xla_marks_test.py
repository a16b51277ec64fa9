"""Marks on functions: kept in graphs, and without effect where nobody knows them."""

import tensorflow as tf

from tff_algos import xla_marks


def _calls(graph: tf.Graph) -> list[str]:
    library = graph.as_graph_def().library.function
    names = {f.signature.name for f in library if xla_marks.is_marked(f)}
    nodes = graph.as_graph_def().node
    return [n.name for n in nodes if n.attr["f"].func.name in names]


def test_a_graph_tells_calls_of_marked_functions_from_others():
    twice = xla_marks.compiled_on_cpu(lambda pair: pair[0] + pair[1])

    @tf.function
    def both(x):
        return twice((x, x)) * tf.function(lambda y: y * 3.0)(x)

    function = both.get_concrete_function(tf.TensorSpec([None]))
    assert len(_calls(function.graph)) == 1
    assert list(function(tf.constant([2.0]))) == [24.0]


def test_calls_with_the_same_shapes_share_a_function():
    twice = xla_marks.compiled_on_cpu(lambda pair: pair[0] + pair[1])
    with tf.Graph().as_default() as graph:
        x = tf.ones([2])
        twice((x, x))
        twice((x, x))
        twice((x[:1], x[:1]))
    assert len(_calls(graph)) == 3
    assert len(graph.as_graph_def().library.function) == 2
