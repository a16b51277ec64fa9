"""Ops that `tf.vectorized_map` gets wrong without raising an error.

Found by running some 460 ops of TensorFlow 2.21 vectorized and client by client, and
comparing.
"""

from collections.abc import Collection

from tensorflow.core.framework.node_def_pb2 import NodeDef

# It formats the values of all clients into one string, pads parsed examples to the longest
# client's, and drops the clients' axis of elements gathered from a TensorList, or
# concatenated from an empty one.
_OPS = frozenset(
    [
        "ParseExample",
        "ParseExampleV2",
        "ParseSingleExample",
        "StringFormat",
        "TensorListConcatV2",
        "TensorListGather",
    ]
)
# They read the rows of all clients, so a client's index that is out of range is a row of
# the next client.
_READS_OF_ROWS = frozenset(
    f"SparseSegment{kind}{end}"
    for kind in ("Mean", "SqrtN", "Sum")
    for end in ("", "WithNumSegments")
)


def find(nodes: Collection[NodeDef]) -> str:
    """Returns which op of a graph or function would be wrong, or an empty string."""
    read = {tensor for node in nodes for tensor in node.input}
    for node in nodes:
        if node.op in _OPS:
            return f"{node.op}, which TensorFlow vectorizes wrongly"
        if _reads_given_statistics(node, read):
            return f"{node.op}'s statistics of inference"
        if node.op in _READS_OF_ROWS:
            return f"{node.op}, whose indices may be out of range"
    return ""


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
