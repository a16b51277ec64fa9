"""Leaves of small functions, and plans of small computations."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.execution import compilation, graph_rewrites, plan
from tff_algos.execution.leaves import Leaf

CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


def leaf_of(function, *specs: tf.TensorSpec) -> Leaf:
    """Returns the leaf of a function from tensors to a list of tensors."""
    with tf.Graph().as_default() as graph:
        fed = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
        outputs = [tf.identity(tensor) for tensor in function(*fed)]
    graph_def = graph.as_graph_def()
    # TensorFlow knows the functions by the names they were traced with.
    graph_rewrites.prefix_functions(graph_def)
    return Leaf(
        "leaf",
        graph_def,
        tuple(tensor.name for tensor in fed),
        tuple(tensor.name for tensor in outputs),
    )


@tff.tensorflow.computation(np.float32)
def double(x):
    return 2 * x


@tff.federated_computation(CLIENT_FLOATS)
def mean_of_doubles(x):
    return tff.federated_mean(tff.federated_map(double, x))


@tff.federated_computation(CLIENT_FLOATS)
def digits(x):
    """An aggregate that is no sum: the digits of a number, one from each client."""
    return tff.federated_aggregate(
        x,
        0.0,
        tff.tensorflow.computation(lambda a, b: 10 * a + b, (np.float32, np.float32)),
        tff.tensorflow.computation(lambda a, b: a, (np.float32, np.float32)),
        tff.tensorflow.computation(lambda a: a, np.float32),
    )


def steps_of(computation) -> tuple[plan.ServerStage | plan.ClientPass, ...]:
    """Returns the steps of a computation's plan."""
    return compilation.compile_to_plan(computation).steps


def passes_of(computation) -> list[plan.ClientPass]:
    """Returns the passes over the clients of a computation's plan."""
    steps = steps_of(computation)
    return [step for step in steps if isinstance(step, plan.ClientPass)]
