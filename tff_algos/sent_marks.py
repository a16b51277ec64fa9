"""A mark on aggregations of values that a deployment would not send.

Clients are simulated, so their memory passes through the computation of a round, which
hands all clients' new rows to its caller; a deployment would send nothing. And a server
that has clients' updates for one aggregate need not be sent them for another. The mark is
a name scope around the op that takes a client's value; the in-process runtime does not
count such values as sent (`execution.communication`), other runtimes ignore the mark.
"""

import contextlib

import tensorflow as tf

_SCOPE = "tff_algos_not_sent"


def not_sent() -> contextlib.AbstractContextManager:
    """Returns the context in which to create the op that takes a client's value."""
    return tf.name_scope(_SCOPE)


def is_marked(graph_def: tf.compat.v1.GraphDef) -> bool:
    """Returns whether a graph has an op with the mark."""
    return any(_SCOPE in node.name.split("/") for node in graph_def.node)
