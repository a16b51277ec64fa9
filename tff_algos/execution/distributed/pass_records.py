"""Client passes as bytes: graphs and types, no Python functions.

A worker needs the clients' work and which aggregates are sums. What leads to the pass's
inputs stays with the driver: here every input is an argument.
"""

import pickle
from collections.abc import Mapping, Sequence

import attrs
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.python.common_libs import structure
from tensorflow_federated.python.core.impl.types import type_serialization

from tff_algos.execution import graph_rewrites
from tff_algos.execution.dataflow import (
    Aggregate,
    Argument,
    Evaluate,
    Node,
    Placement,
    Port,
    Select,
)
from tff_algos.execution.leaves import Leaf
from tff_algos.execution.plan import ClientPass, Fragment

# A port: the number of its node, and its index among the node's outputs.
_PortRecord = tuple[int, int]


@attrs.frozen
class _TypeRecord:
    """A type, with the Python container of a struct, which decides its order."""

    proto: bytes
    container: type | None = None
    elements: "tuple[tuple[str | None, _TypeRecord], ...] | None" = None


@attrs.frozen
class _LeafRecord:
    name: str
    graph_def: bytes
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    obstacle: str


@attrs.frozen
class _NodeRecord:
    """A node; `leaf` is the number of its leaf, `None` for arguments."""

    kind: str
    at_clients: bool
    inputs: tuple[_PortRecord, ...]
    output_types: tuple[_TypeRecord, ...]
    leaf: int | None = None
    element_type: _TypeRecord | None = None
    num_values: int | None = None


@attrs.frozen
class _PassRecord:
    """A pass; of its nodes the arguments are first, the aggregates last."""

    leaves: tuple[_LeafRecord, ...]
    nodes: tuple[_NodeRecord, ...]
    inputs: tuple[_PortRecord, ...]
    outputs: tuple[_PortRecord, ...]
    kept: tuple[_PortRecord, ...]


def to_bytes(client_pass: ClientPass) -> bytes:
    """Returns a pass without what leads to its inputs.

    Args:
      client_pass: The pass.
    """
    writer = _Writer(client_pass)
    return pickle.dumps(writer.record(), protocol=pickle.HIGHEST_PROTOCOL)


def from_bytes(serialized: bytes) -> ClientPass:
    """Returns the pass of `to_bytes`, for inputs in the same order.

    Its functions have names that are unique in this process. The aggregates' zeros are
    arguments as well.
    """
    record = pickle.loads(serialized)
    leaves = [_leaf(each) for each in record.leaves]
    nodes: list[Node] = []
    for each in record.nodes:
        nodes.append(_node(each, nodes, leaves))

    def ports(records: Sequence[_PortRecord]) -> tuple[Port, ...]:
        return tuple(Port(nodes[number], index) for number, index in records)

    work = [node for node in nodes if isinstance(node, Evaluate | Select)]
    aggregates = [node for node in nodes if isinstance(node, Aggregate)]
    fragment = Fragment(tuple(work), ports(record.inputs), ports(record.outputs))
    return ClientPass(fragment, tuple(aggregates), ports(record.kept))


class _Writer:
    """Writes one pass: numbers its nodes and leaves."""

    def __init__(self, client_pass: ClientPass):
        self._pass = client_pass
        self._ports: dict[Port, _PortRecord] = {}
        self._nodes: list[_NodeRecord] = []
        self._numbers: dict[Leaf, int] = {}
        self._leaves: list[_LeafRecord] = []

    def record(self) -> _PassRecord:
        fragment, aggregates = self._pass.fragment, self._pass.aggregates
        zeros = [port for aggregate in aggregates for port in aggregate.zeros]
        for port in dict.fromkeys([*fragment.inputs, *zeros]):
            self._add_argument(port)
        for node in (*fragment.nodes, *aggregates):
            self._add(node)
        return _PassRecord(
            tuple(self._leaves),
            tuple(self._nodes),
            *[
                tuple(self._ports[port] for port in ports)
                for ports in (fragment.inputs, fragment.outputs, self._pass.kept)
            ],
        )

    def _add_argument(self, port: Port) -> None:
        self._ports[port] = (len(self._nodes), 0)
        at_clients = port.placement is Placement.CLIENTS
        types = (_type_record(port.type_signature),)
        self._nodes.append(_NodeRecord("argument", at_clients, (), types))

    def _add(self, node: Node) -> None:
        inputs = tuple(self._ports[port] for port in node.inputs)
        for port in node.outputs():
            self._ports[port] = (len(self._nodes), port.index)
        own: Mapping[str, object]
        match node:
            case Evaluate():
                kind, leaf, own = "evaluate", node.leaf, {}
            case Select():
                kind, leaf = "select", node.leaf
                own = {"element_type": _type_record(node.element_type)}
            case Aggregate():
                kind, leaf = "aggregate", node.accumulate
                own = {"num_values": node.num_values}
            case _:
                raise TypeError(f"Expected a node of a client pass, found {node}.")
        self._nodes.append(
            _NodeRecord(
                kind,
                node.placement is Placement.CLIENTS,
                inputs,
                tuple(map(_type_record, node.output_types)),
                leaf=self._number(leaf),
                **own,
            )
        )

    def _number(self, leaf: Leaf) -> int:
        if leaf not in self._numbers:
            self._numbers[leaf] = len(self._leaves)
            self._leaves.append(
                _LeafRecord(
                    leaf.name,
                    leaf.graph_def.SerializeToString(deterministic=True),
                    leaf.inputs,
                    leaf.outputs,
                    leaf.obstacle,
                )
            )
        return self._numbers[leaf]


def _leaf(record: _LeafRecord) -> Leaf:
    graph_def = tf.compat.v1.GraphDef.FromString(record.graph_def)
    # Their names may be taken in this process.
    graph_rewrites.prefix_functions(graph_def)
    return Leaf(record.name, graph_def, record.inputs, record.outputs, record.obstacle)


def _node(record: _NodeRecord, nodes: Sequence[Node], leaves: Sequence[Leaf]) -> Node:
    common = {
        "placement": Placement.CLIENTS if record.at_clients else Placement.SERVER,
        "inputs": tuple(Port(nodes[number], index) for number, index in record.inputs),
        "output_types": tuple(map(_type, record.output_types)),
    }
    match record.kind:
        case "argument":
            return Argument(**common)
        case "evaluate":
            return Evaluate(**common, leaf=leaves[record.leaf])
        case "select":
            element_type = _type(record.element_type)
            leaf = leaves[record.leaf]
            return Select(**common, leaf=leaf, element_type=element_type)
        case _:
            leaf = leaves[record.leaf]
            return Aggregate(**common, num_values=record.num_values, accumulate=leaf)


def _type_record(type_spec: tff.Type) -> _TypeRecord:
    if isinstance(type_spec, tff.StructType):
        container = getattr(type_spec, "python_container", None)
        elements = tuple(
            (n, _type_record(t)) for n, t in structure.iter_elements(type_spec)
        )
        return _TypeRecord(b"", container, elements)
    proto = type_serialization.serialize_type(type_spec)
    return _TypeRecord(proto.SerializeToString())


def _type(record: _TypeRecord) -> tff.Type:
    if record.elements is None:
        proto = computation_pb2.Type.FromString(record.proto)
        return type_serialization.deserialize_type(proto)
    elements = [(name, _type(each)) for name, each in record.elements]
    if record.container is None:
        return tff.StructType(elements)
    return tff.StructWithPythonType(elements, record.container)
