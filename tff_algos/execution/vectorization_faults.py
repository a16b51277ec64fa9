"""Ops that `tf.vectorized_map` gets wrong without raising an error.

Found by running some 460 ops of TensorFlow 2.21 vectorized and client by client, and
comparing.
"""

from collections.abc import Collection, Mapping

from tensorflow.core.framework.node_def_pb2 import NodeDef

from tff_algos.execution import graph_contents

# It pads with zeros whatever the value; shifts a roll along a negative axis along another
# one; formats the values of all clients into one string; pads parsed examples to the
# longest client's; and drops the clients' axis of elements gathered from a TensorList,
# or concatenated from an empty one.
_OPS = frozenset(
    [
        "PadV2",
        "ParseExample",
        "ParseExampleV2",
        "ParseSingleExample",
        "Roll",
        "StringFormat",
        "TensorListConcatV2",
        "TensorListGather",
    ]
)
# It numbers the segments of all clients consecutively, so a client's id that is out of
# range is the next client's. Ids that a gather has used as indices are known to be valid.
_SEGMENTS = frozenset(
    f"UnsortedSegment{kind}" for kind in ("Max", "Min", "Prod", "Sum")
)
_GATHERS = frozenset(["Gather", "GatherV2", "ResourceGather"])
_SAME_VALUES = frozenset(["Cast", "ExpandDims", "Identity", "Reshape"])


def find(nodes: Collection[NodeDef]) -> str:
    """Returns which op of a graph or function would be wrong, or an empty string."""
    by_name = {node.name: node for node in nodes}
    read = {tensor for node in nodes for tensor in node.input}
    gathered = {_source(by_name, n.input[1]) for n in nodes if n.op in _GATHERS}
    for node in nodes:
        if node.op in _OPS:
            return f"{node.op}, which TensorFlow vectorizes wrongly"
        if _reads_given_statistics(node, read):
            return f"{node.op}'s statistics of inference"
        if node.op in _SEGMENTS and _source(by_name, node.input[1]) not in gathered:
            return f"{node.op}, whose segments may be out of range"
    return ""


def _source(nodes: Mapping[str, NodeDef], tensor: str) -> str:
    """Returns the node that computed a tensor's values, before it was reshaped or cast."""
    name = graph_contents.node_name(tensor)
    while name in nodes and nodes[name].op in _SAME_VALUES:
        name = graph_contents.node_name(nodes[name].input[0])
    return name


def _reads_given_statistics(node: NodeDef, read: Collection[str]) -> bool:
    """Returns whether a node is batch normalization in inference whose statistics are read.

    `tf.vectorized_map` returns zeros for these.

    Args:
      node: Any node.
      read: The tensors that nodes read, as a graph or a function names them.
    """
    if not node.op.startswith("FusedBatchNorm") or node.attr["is_training"].b:
        return False
    output = f"{node.name}:"
    return any(
        each.startswith(output) and not each.startswith((f"{output}0", f"{output}y:"))
        for each in read
    )
