"""A compiled TFF computation as a graph of dependencies between tensors.

The blocks of a computation refer to values by name and in nested structures. Evaluating
them once with symbols instead of values leaves only TensorFlow leaves, aggregations and
selections with their input tensors. Broadcasts, zips, element selections and placed
values only identify tensors, so they disappear.

                 +--> Leaf@CLIENTS --+--> Aggregate --> Leaf@SERVER --> result
    Argument ----+                   |
                 +--> Leaf@SERVER ---+  (what the server sends to every client)
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import tensorflow_federated as tff
from tensorflow_federated.python.common_libs import structure

from tff_algos.execution import leaves as leaves_lib
from tff_algos.execution import sequences, types, variables


class UnsupportedComputationError(ValueError):
    """The runtime cannot run the computation; the message names block and reason."""


class Placement(enum.Enum):
    """Whether a node is evaluated once or once per client."""

    SERVER = enum.auto()
    CLIENTS = enum.auto()


@attrs.frozen(eq=False, repr=False)
class Node:
    """A node of the graph, with tensors as outputs.

    Attributes:
      placement: Whether each output has one value or one per client.
      inputs: The node's inputs.
      output_types: A tensor or sequence type for each output.
    """

    placement: Placement
    inputs: "tuple[Port, ...]"
    output_types: tuple[tff.Type, ...]

    def outputs(self) -> "tuple[Port, ...]":
        return tuple(Port(self, index) for index in range(len(self.output_types)))

    def __repr__(self) -> str:
        # Without the inputs, which would be shown with all their dependencies.
        name = f" {self.leaf.name}" if hasattr(self, "leaf") else ""
        types_ = ", ".join(map(str, self.output_types))
        return (
            f"<{type(self).__name__}{name} at {self.placement.name.lower()}: "
            f"{len(self.inputs)} inputs, <{types_}>>"
        )


@attrs.frozen
class Port:
    """One output of a node; compares by value."""

    node: Node
    index: int

    @property
    def type_signature(self) -> tff.Type:
        return self.node.output_types[self.index]

    @property
    def placement(self) -> Placement:
        return self.node.placement


@attrs.frozen(eq=False, repr=False)
class Argument(Node):
    """Part of the computation's argument; its outputs are values passed in."""


@attrs.frozen(eq=False, repr=False)
class Evaluate(Node):
    """A leaf applied to its inputs."""

    leaf: leaves_lib.Leaf


@attrs.frozen(eq=False, repr=False)
class Select(Node):
    """A client's selection: a sequence of `leaf(server value, key)`.

    The inputs are the client's keys, then the server's value.
    """

    leaf: leaves_lib.Leaf
    element_type: tff.Type


@attrs.frozen(eq=False, repr=False)
class Aggregate(Node):
    """The accumulation of clients' values, before the report; placed at the server.

    The inputs are the client's value, then the zero.

    Attributes:
      num_values: How many of the inputs belong to the client's value.
      accumulate: Maps the accumulator and a value to the new accumulator.
    """

    num_values: int
    accumulate: leaves_lib.Leaf

    @property
    def values(self) -> tuple[Port, ...]:
        return self.inputs[: self.num_values]

    @property
    def zeros(self) -> tuple[Port, ...]:
        return self.inputs[self.num_values :]


# A tensor, a structure of values, or a function of a value.
Value = "Port | tuple[Value, ...] | Callable[[Value, Placement], Value]"


@attrs.frozen(eq=False)
class Dataflow:
    """The whole computation.

    Attributes:
      parameters: Every tensor of the argument, in the order of its type.
      results: Every tensor of the result, in the order of its type.
    """

    parameters: tuple[Port, ...]
    results: tuple[Port, ...]


def build(block: tff.framework.ComputationBuildingBlock) -> Dataflow:
    """Evaluates a compiled computation symbolically.

    Args:
      block: A block of functional type with all local parts compiled to TensorFlow.

    Returns:
      The tensors of its result, with all their dependencies.

    Raises:
      UnsupportedComputationError: If this runtime does not support a block.
    """
    parameters: list[Port] = []
    argument = None
    if block.type_signature.parameter is not None:
        argument = _argument(
            block.type_signature.parameter, Placement.SERVER, parameters
        )
    result = _Evaluator().evaluate(block)(argument, Placement.SERVER)
    return Dataflow(tuple(parameters), tuple(_flat(result, block)))


def _argument(type_spec: tff.Type, placement: Placement, parameters: list[Port]) -> Any:
    """Creates the symbols of an argument and appends each to `parameters`."""
    match type_spec:
        case tff.StructType():
            elements = structure.to_elements(type_spec)
            return tuple(_argument(e, placement, parameters) for _, e in elements)
        case tff.FederatedType():
            per_client = type_spec.placement is tff.CLIENTS and not type_spec.all_equal
            where = Placement.CLIENTS if per_client else Placement.SERVER
            return _argument(type_spec.member, where, parameters)
        case tff.TensorType() | tff.SequenceType():
            (port,) = Argument(placement, (), (type_spec,)).outputs()
            parameters.append(port)
            return port
        case _:
            raise UnsupportedComputationError(
                f"Cannot run a computation with an argument of type {type_spec}."
            )


def _flat(value: Any, block: Any) -> list[Port]:
    """Returns the tensors of a value, in order; fails for functions."""
    match value:
        case Port():
            return [value]
        case tuple():
            return [port for element in value for port in _flat(element, block)]
        case _:
            raise UnsupportedComputationError(
                f"Expected data, found a function in {_shortened(block)}."
            )


def _pack(ports: Sequence[Port], type_spec: tff.Type) -> Any:
    """Returns the value of an unplaced type whose tensors these are."""
    return _pack_next(iter(ports), type_spec)


def _pack_next(remaining: Iterator[Port], type_spec: tff.Type) -> Any:
    # Not a recursive function inside `_pack`: its reference cycle would keep the ports,
    # and thus all leaves, alive until the garbage collector runs.
    if not isinstance(type_spec, tff.StructType):
        return next(remaining)
    elements = structure.to_elements(type_spec)
    return tuple(_pack_next(remaining, element) for _, element in elements)


def _shortened(block: Any) -> str:
    text = block.compact_representation()
    return text if len(text) <= 200 else f"{text[:200]}..."


class _Evaluator:
    """Evaluates blocks to symbols; the scope maps names to values."""

    def __init__(self):
        self._leaves: dict[int, tuple[Any, leaves_lib.Leaf]] = {}

    def evaluate(self, block: Any) -> Any:
        """Returns the value of a block without free names."""
        return self._evaluate(block, {}, Placement.SERVER)

    def _evaluate(self, block: Any, scope: Mapping[str, Any], where: Placement) -> Any:
        """Returns the value of a block, whose new leaves are placed `where`."""
        match block:
            case tff.framework.Reference():
                return scope[block.name]
            case tff.framework.Struct():
                return tuple(self._evaluate(e, scope, where) for e in block)
            case tff.framework.Selection():
                return self._evaluate(block.source, scope, where)[_position(block)]
            case tff.framework.Block():
                inner = dict(scope)
                for name, local in block.locals:
                    inner[name] = self._evaluate(local, inner, where)
                return self._evaluate(block.result, inner, where)
            case tff.framework.Lambda():
                return self._closure(block, scope)
            case tff.framework.Call():
                argument = None
                if block.argument is not None:
                    argument = self._evaluate(block.argument, scope, where)
                if isinstance(block.function, tff.framework.Intrinsic):
                    return self._intrinsic(block, argument, where)
                return self._evaluate(block.function, scope, where)(argument, where)
            case tff.framework.CompiledComputation():
                return self._leaf_function(block)
            case tff.framework.Intrinsic() if block.uri == "sequence_sum":
                return self._sequence_sum(block)
            case _:
                raise UnsupportedComputationError(
                    f"The in-process runtime cannot run a {type(block).__name__} "
                    f"block: {_shortened(block)}."
                )

    def _closure(self, block: Any, scope: Mapping[str, Any]) -> Any:
        def call(argument: Any, where: Placement) -> Any:
            inner = scope
            if block.parameter_name is not None:
                inner = {**scope, block.parameter_name: argument}
            return self._evaluate(block.result, inner, where)

        return call

    def _leaf_function(self, block: Any) -> Any:
        leaf = self._leaf(block)
        result = block.type_signature.result

        def call(argument: Any, where: Placement) -> Any:
            inputs = () if argument is None else tuple(_flat(argument, block))
            types_ = tuple(types.flatten(result))
            return _pack(Evaluate(where, inputs, types_, leaf).outputs(), result)

        return call

    def _leaf(self, block: Any) -> leaves_lib.Leaf:
        """Returns the leaf of a compiled block, the same one for the same block."""
        kind = block.proto.WhichOneof("computation")
        if kind != "tensorflow":
            advice = (
                " A function that is mapped over a sequence, or aggregates, cannot use "
                "values of the computation around it: pass them with each element."
                if kind == "lambda"
                else ""
            )
            raise UnsupportedComputationError(
                f"The in-process runtime runs leaves of TensorFlow, found one of "
                f"{kind}: {_shortened(block)}.{advice}"
            )
        if id(block) not in self._leaves:
            try:
                leaf = leaves_lib.from_block(block, f"leaf{len(self._leaves)}")
                leaf = variables.lift(leaf)
            except ValueError as error:
                raise UnsupportedComputationError(
                    f"The in-process runtime cannot run {_shortened(block)}: {error}"
                ) from error
            # Keep the block, so that its id is not reused.
            self._leaves[id(block)] = (block, leaf)
        return self._leaves[id(block)][1]

    def _intrinsic(self, call: Any, argument: Any, where: Placement) -> Any:
        uri = call.function.uri
        match uri:
            case "sequence_sum":
                return self._sequence_sum(call.function)(argument, where)
            case "sequence_map":
                return self._sequence_map(call, argument, where)
            case "sequence_reduce":
                return self._sequence_reduce(call, argument, where)
        if uri not in _INTRINSICS:
            advice = (
                " Secure aggregation has no meaning in one process; the same result in "
                "the clear: "
                "tff_algos.execution.set_in_process_context(insecure_aggregation=True)."
                if "secure" in uri
                else ""
            )
            raise UnsupportedComputationError(
                f"The in-process runtime cannot run the intrinsic {uri}.{advice}"
            )
        return _INTRINSICS[uri](self, call, argument)

    def _aggregate(self, call: Any, argument: Any) -> Any:
        value, zero, accumulate, _, report = argument
        values, zeros = tuple(_flat(value, call)), tuple(_flat(zero, call))
        leaf = self._leaf(call.argument[2])
        # More general than the zero's type, whose static shapes may grow.
        accumulator = call.argument[2].type_signature.parameter[0]
        node = Aggregate(
            placement=Placement.SERVER,
            inputs=values + zeros,
            output_types=tuple(types.flatten(accumulator)),
            num_values=len(values),
            accumulate=leaf,
        )
        del accumulate
        total = _pack(node.outputs(), accumulator)
        return report(total, Placement.SERVER)

    def _sequence_sum(self, block: Any) -> Any:
        leaf = sequences.sum_leaf(block.type_signature.parameter)
        result = block.type_signature.result

        def call(argument: Any, where: Placement) -> Any:
            types_ = tuple(types.flatten(result))
            return _pack(Evaluate(where, (argument,), types_, leaf).outputs(), result)

        return call

    def _sequence_map(self, call: Any, argument: Any, where: Placement) -> Any:
        _, sequence = argument
        source, result = call.argument[1].type_signature, call.type_signature
        leaf = sequences.map_leaf(self._leaf(call.argument[0]), source, result)
        return Evaluate(where, (sequence,), (result,), leaf).outputs()[0]

    def _sequence_reduce(self, call: Any, argument: Any, where: Placement) -> Any:
        sequence, zero, _ = argument
        source, result = call.argument[0].type_signature, call.type_signature
        leaf = sequences.reduce_leaf(self._leaf(call.argument[2]), source, result)
        inputs = (sequence, *_flat(zero, call))
        outputs = Evaluate(where, inputs, tuple(types.flatten(result)), leaf).outputs()
        return _pack(outputs, result)

    def _select(self, call: Any, argument: Any) -> Any:
        keys, _, server_value, _ = argument
        leaf = self._leaf(call.argument[3])
        result = call.type_signature.member
        node = Select(
            placement=Placement.CLIENTS,
            inputs=(*_flat(keys, call), *_flat(server_value, call)),
            output_types=(result,),
            leaf=leaf,
            element_type=result.element,
        )
        return node.outputs()[0]


def _position(selection: Any) -> int:
    if selection.index is not None:
        return selection.index
    names = structure.name_list_with_nones(selection.source.type_signature)
    return names.index(selection.name)


def _map(where: Placement) -> Any:
    return lambda evaluator, call, argument: argument[0](argument[1], where)


def _same(evaluator: Any, call: Any, argument: Any) -> Any:
    del evaluator, call
    return argument


# A map over values that are equal at all clients is computed once.
_INTRINSICS = {
    "federated_aggregate": _Evaluator._aggregate,
    "federated_apply": _map(Placement.SERVER),
    "federated_broadcast": _same,
    "federated_eval_at_clients": lambda _, call, fn: fn(None, Placement.CLIENTS),
    "federated_eval_at_server": lambda _, call, fn: fn(None, Placement.SERVER),
    "federated_map": _map(Placement.CLIENTS),
    "federated_map_all_equal": _map(Placement.SERVER),
    "federated_select": _Evaluator._select,
    "federated_value_at_clients": _same,
    "federated_value_at_server": _same,
    "federated_zip_at_clients": _same,
    "federated_zip_at_server": _same,
}
