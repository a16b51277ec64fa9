"""Rewritten graphs run the kernels that TensorFlow chooses for the ops alone."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tasks.models import image
from tff_algos import build_fed_avg, execution
from tff_algos.execution import graph_rewrites


def kernels_of(run, op, directory):
    """The kernels of an op, under any of their names, while `run` runs."""
    tf.profiler.experimental.start(str(directory))
    run()
    tf.profiler.experimental.stop()
    (trace,) = pathlib.Path(directory).rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(trace.read_bytes())
    events = [e.name for plane in space.planes for e in plane.event_metadata.values()]
    kernels = {name.rpartition(":")[2] for name in events}
    return {kernel for kernel in kernels if kernel.endswith(op)}


def clients(count):
    rng = np.random.default_rng(0)
    shape = [20, *image.IMAGE_SHAPE]
    return [
        tf.data.Dataset.from_tensor_slices(
            (rng.uniform(size=shape).astype(np.float32), np.arange(20) % 10)
        ).batch(10)
        for _ in range(count)
    ]


def test_gradients_of_max_pooling_in_loops_are_those_of_a_single_op(tmp_path):
    @tf.function
    def gradient(x):
        return tf.gradients(tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "VALID"), x)

    x = tf.random.normal([10, 24, 24, 64])
    gradient(x)
    expected = kernels_of(lambda: gradient(x), "MaxPoolGrad", tmp_path / "alone")
    assert len(expected) == 1

    model = image.build_emnist_model("cnn_dropout", only_digits=True, seed=0)
    data = [client.map(lambda x, y: (x, tf.cast(y, tf.int32))) for client in clients(8)]
    with execution.in_process_context(batch_clients=False, num_threads=4):
        for turn in range(3):
            process = build_fed_avg(model, tff.learning.optimizers.build_sgdm(0.1))
            state = process.next(process.initialize(), data).state
            found = kernels_of(
                lambda p=process, s=state: p.next(s, data),
                "MaxPoolGrad",
                tmp_path / str(turn),
            )
            assert found == expected


def loop_of(body):
    @tf.function
    def run(x):
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, body(x)), (0, x))

    return run.get_concrete_function(tf.TensorSpec([1, 4, 4, 1])).graph.as_graph_def()


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        (lambda x: x * 0.5, False),
        (lambda x: tf.gradients(tf.nn.max_pool2d(x, 2, 2, "SAME"), x)[0], True),
        (tf.function(lambda x: tf.gradients(tf.nn.lrn(x), x)[0]), True),
    ],
)
def test_only_loops_with_gradients_that_look_for_their_forward_ops_stay_whole(
    body, stays
):
    graph_def = loop_of(body)
    graph_rewrites.keep_loops_whole(graph_def)
    (loop,) = [node for node in graph_def.node if "While" in node.op]
    assert loop.attr["_lower_using_switch_merge"].b == (not stays)
