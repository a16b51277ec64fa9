"""Rewritten graphs run the kernels that TensorFlow chooses for the ops alone."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tasks.models import image, text
from tests.testing import equivalence
from tff_algos import build_fed_avg, execution, xla_marks
from tff_algos.execution import graph_contents, graph_rewrites


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


def test_xla_compiles_calls_of_marked_functions_alone():
    marked = xla_marks.compiled_on_cpu(lambda x: tf.tanh(x) * 2.0)

    @tf.function
    def inner(x):
        return marked(x) + tf.function(tf.sin)(x)

    function = tf.function(inner).get_concrete_function(tf.TensorSpec([3]))
    graph_def = function.graph.as_graph_def()
    graph_rewrites.compile_marked_functions(graph_def)
    compiled = [
        node
        for node in graph_contents.all_nodes(graph_def)
        if "_XlaMustCompile" in node.attr
    ]
    assert len(compiled) == 1
    # The rewritten graph computes the same.
    rewritten = tf.compat.v1.wrap_function(
        lambda x: tf.graph_util.import_graph_def(
            graph_def,
            input_map={function.inputs[0].name: x},
            return_elements=[function.outputs[0].name],
        ),
        [tf.TensorSpec([3])],
    )
    x = tf.constant([0.1, 0.2, 0.3])
    np.testing.assert_allclose(rewritten(x)[0], inner(x), rtol=1e-6)


def test_a_clients_recurrent_layers_train_to_the_same(native_context):
    """Three batches of each client, the last of another size."""
    model = text.build_lstm_model(vocab_size=10, sequence_length=7)
    rng = np.random.default_rng(0)
    characters = rng.integers(1, 10, (2, 10, 8)).astype(np.int32)
    data = [
        tf.data.Dataset.from_tensor_slices((c[:, :-1], c[:, 1:])).batch(4)
        for c in characters
    ]
    process = build_fed_avg(model, tff.learning.optimizers.build_sgdm(0.5))

    def trained(context):
        state = equivalence.call(context, process.initialize)
        return equivalence.call(context, process.next, state, data).state

    states = map(trained, (equivalence.in_process(), native_context))
    one, other = (process.get_model_weights(state).trainable for state in states)
    for a, b, initial in zip(one, other, model.initial_weights[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert np.abs(a - initial).max() > 1e-4


def test_all_outputs_are_renamed_of_any_function():
    """Assigning to a proto's map while iterating over it skips entries of some maps."""
    for number in range(50):
        function = FunctionDef()
        for index in range(4):
            function.ret[f"output_{number}_{index}"] = f"node:components:{index}"
        graph_rewrites.rename_outputs(function, {"node": {"components": 0}})
        renamed = sorted(function.ret.values())
        assert renamed == [f"node:output:{index}" for index in range(4)]
