"""What `tf.vectorized_map` computes wrongly, without an error.

Found by comparing some 460 ops of TensorFlow 2.21, vectorized and client by client.
"""

from collections.abc import Collection, Mapping

from tensorflow.core.framework.node_def_pb2 import NodeDef

from tff_algos.execution import graph_contents

# It pads with zeros whatever the value, counts negative axes of a roll from the clients'
# axis, formats the values of all clients at once, fills parsed examples up to the longest
# of all clients', and gathers a list's elements without that axis.
_OPS = frozenset(
    [
        "PadV2",
        "ParseExample",
        "ParseExampleV2",
        "ParseSingleExample",
        "Roll",
        "StringFormat",
        "TensorListGather",
    ]
)
# It numbers the segments of all clients one after the other, so that a segment beyond a
# client's last one would be the next client's. A gather has checked its indices.
_SEGMENTS = frozenset(
    f"UnsortedSegment{kind}" for kind in ("Max", "Min", "Prod", "Sum")
)
_GATHERS = frozenset(["Gather", "GatherV2", "ResourceGather"])
_SAME_VALUES = frozenset(["Cast", "ExpandDims", "Identity", "Reshape"])


def find(nodes: Collection[NodeDef]) -> str:
    """Returns what of a graph or function would be wrong, or nothing."""
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
    """Returns the node that computed a tensor's values, by whatever shape."""
    name = graph_contents.node_name(tensor)
    while name in nodes and nodes[name].op in _SAME_VALUES:
        name = graph_contents.node_name(nodes[name].input[0])
    return name


def _reads_given_statistics(node: NodeDef, read: Collection[str]) -> bool:
    """Returns whether the statistics of batch normalization in inference are read.

    `tf.vectorized_map` returns zeros for them.

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
