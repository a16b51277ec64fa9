"""The mark on what is not sent: in the graph where it was set, and only there."""

import tensorflow as tf

from tff_algos import sent_marks


def _graph(build):
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def test_a_graph_with_an_op_in_the_scope_is_marked():
    def build():
        with tf.name_scope("outer"), sent_marks.not_sent():
            tf.constant(1.0)

    assert sent_marks.is_marked(_graph(build))


def test_other_graphs_are_not():
    def build():
        with sent_marks.not_sent():
            pass
        tf.constant(1.0, name="tff_algos_not_sent_but")

    assert not sent_marks.is_marked(_graph(build))
