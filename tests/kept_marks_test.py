"""The mark on what clients keep: in the graph where it was set, and only there."""

import tensorflow as tf

from tff_algos import kept_marks


def _graph(build):
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def test_a_graph_with_an_op_in_the_scope_is_marked():
    def build():
        with tf.name_scope("outer"), kept_marks.kept_by_clients():
            tf.constant(1.0)

    assert kept_marks.is_marked(_graph(build))


def test_other_graphs_are_not():
    def build():
        with kept_marks.kept_by_clients():
            pass
        tf.constant(1.0, name="tff_algos_kept_by_clients_not")

    assert not kept_marks.is_marked(_graph(build))
