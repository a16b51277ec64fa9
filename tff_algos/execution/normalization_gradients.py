"""Gradients of batch normalization that are safe to run concurrently.

TensorFlow's oneDNN kernel of FusedBatchNormGrad keeps the number of channels in a
member, and all executions of a function share the kernel. Concurrent executions with
different numbers of channels write out of bounds. The number differs between chunks of
clients, since a vectorized op has the channels of all its clients, and between batches
in Keras' layer normalization, whose channels are the examples. (The kernel of the
forward op had the same bug until TensorFlow's pull request 99852.)
"""

from collections.abc import Callable

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tff_algos.execution import graph_contents, graph_rewrites, tracing
from tff_algos.execution.graph_contents import GraphDef

_OPS = ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")


def compose(graph_def: GraphDef) -> None:
    """Replaces all fused gradients by compositions of other ops."""
    _compose(graph_def, lambda node: True)


def compose_where_channels_vary(graph_def: GraphDef) -> None:
    """Replaces the fused gradients whose number of channels may change.

    Those are the gradients with channels first: on CPUs, only Keras' layer
    normalization uses this format. With channels last, their number is a constant of
    the layer, and the fused gradient is faster.
    """
    _compose(graph_def, lambda node: node.attr["data_format"].s == b"NCHW")


def _compose(graph_def: GraphDef, is_chosen: Callable[[NodeDef], bool]) -> None:
    compositions: dict[tuple, FunctionDef] = {}
    for scope in [graph_def, *graph_def.library.function]:
        nodes = scope.node if isinstance(scope, GraphDef) else scope.node_def
        chosen = [node for node in nodes if node.op in _OPS and is_chosen(node)]
        outputs = {node.name: _output_positions(node) for node in chosen}
        if isinstance(scope, FunctionDef):
            graph_rewrites.rename_outputs(scope, outputs)
        for node in chosen:
            key = _key(node)
            if key not in compositions:
                compositions[key] = _composition(node, len(compositions))
            _call(node, compositions[key])
    graph_def.library.function.extend(compositions.values())


def _key(node: NodeDef) -> tuple:
    names = ("T", "U", "data_format", "epsilon", "is_training")
    known = [name for name in names if name in node.attr]
    return (node.op, *(node.attr[name].SerializeToString() for name in known))


def _output_positions(node: NodeDef) -> dict[str, int]:
    outputs = graph_contents.op_definition(node.op).output_arg
    return {output.name: index for index, output in enumerate(outputs)}


def _composition(node: NodeDef, number: int) -> FunctionDef:
    """Returns a function with the inputs and outputs of a fused gradient."""
    dtype, of_statistics = _dtype(node, "T"), _dtype(node, "U")
    data_format = node.attr["data_format"].s.decode()
    channels = data_format.index("C")
    others = [axis for axis in range(len(data_format)) if axis != channels]
    one_by_channel = [-1 if axis == channels else 1 for axis in range(len(data_format))]

    def gradients(
        y_gradient: tf.Tensor, x: tf.Tensor, scale: tf.Tensor, *statistics: tf.Tensor
    ) -> list[tf.Tensor]:
        x, offset = tf.cast(x, of_statistics), tf.zeros_like(scale)
        # The statistics that the forward op reserves differ between devices.
        mean, variance = (
            tf.nn.moments(x, others, keepdims=True)
            if node.attr["is_training"].b
            else (tf.reshape(each, one_by_channel) for each in statistics[:2])
        )
        y = tf.nn.batch_normalization(
            x,
            mean,
            variance,
            tf.reshape(offset, one_by_channel),
            tf.reshape(scale, one_by_channel),
            node.attr["epsilon"].f,
        )
        found = tf.gradients(y, [x, scale, offset], tf.cast(y_gradient, of_statistics))
        unused = tf.zeros([0], of_statistics)
        return [tf.cast(found[0], dtype), *found[1:], unused, unused]

    images = tf.TensorSpec([None] * len(data_format), dtype)
    num_reserved = len(graph_contents.op_definition(node.op).input_arg) - 3
    vectors = [tf.TensorSpec([None], of_statistics)] * (1 + num_reserved)
    traced = tracing.concrete_function(gradients, [images, images, *vectors])
    function = FunctionDef.FromString(traced.function_def.SerializeToString())
    function.signature.name = f"{node.op}{number}"
    return function


def _dtype(node: NodeDef, attribute: str) -> tf.DType:
    """Returns a type; the op's first version has none for statistics, but float32."""
    known = attribute in node.attr
    return tf.as_dtype(node.attr[attribute].type) if known else tf.float32


def _call(node: NodeDef, function: FunctionDef) -> None:
    """Turns a node into a call of a function with the same inputs and outputs."""
    node.op = "PartitionedCall"
    node.attr.clear()
    node.attr["f"].func.name = function.signature.name
    for name, arguments in (
        ("Tin", function.signature.input_arg),
        ("Tout", function.signature.output_arg),
    ):
        node.attr[name].list.type.extend(argument.type for argument in arguments)
