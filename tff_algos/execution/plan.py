"""The order in which a computation's dataflow runs.

Server stages and client passes alternate. A client pass goes over the clients once and
evaluates everything that is possible at that point: all aggregations that do not depend
on a later one share the pass, and client work that several of them need runs once.

    stage 0 -> pass 0 -> stage 1 -> pass 1 -> ... -> stage n
"""

import collections
from collections.abc import Iterable, Mapping, Sequence

import attrs

from tff_algos.execution import dataflow as dataflow_lib
from tff_algos.execution.dataflow import Aggregate, Argument, Node, Placement, Port


@attrs.frozen(eq=False)
class Fragment:
    """Nodes that run together.

    Attributes:
      nodes: `Evaluate` and `Select` nodes in topological order.
      inputs: The ports that the nodes take from outside.
      outputs: The ports of the nodes or of `inputs` that are used outside.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def leaf_names(fragment: Fragment) -> list[str]:
    """Returns the names of a fragment's leaves."""
    return [node.leaf.name for node in fragment.nodes]


@attrs.frozen(eq=False)
class ServerStage:
    """The server's computation between two passes over the clients."""

    fragment: Fragment


@attrs.frozen(eq=False)
class ClientPass:
    """The clients' computation and the aggregates of its values.

    Attributes:
      fragment: The clients' work; its outputs are the aggregates' values in order,
        then `kept`.
      aggregates: The aggregates of the values, which start from their zeros.
      kept: Clients' values that later passes or the result need.
    """

    fragment: Fragment
    aggregates: tuple[Aggregate, ...]
    kept: tuple[Port, ...]


@attrs.frozen(eq=False)
class Plan:
    """All stages and passes of a computation, in order."""

    dataflow: dataflow_lib.Dataflow
    steps: tuple[ServerStage | ClientPass, ...]


def build(dataflow: dataflow_lib.Dataflow) -> Plan:
    """Plans the computation of a dataflow's results.

    Args:
      dataflow: A dataflow of any depth.

    Returns:
      The stages and passes, without empty ones.
    """
    order = _topological_order(dataflow.results)
    levels = _levels(order)
    turns = _turns(order, levels, dataflow.results)
    consumers = _consumers(order, turns, dataflow.results)
    steps: list[ServerStage | ClientPass] = []
    for turn in range(max(turns.values(), default=0) + 1):
        nodes = [n for n in order if turns[n] == turn and not isinstance(n, Argument)]
        stage = [n for n in nodes if _on_server(n)]
        if stage:
            steps.append(ServerStage(_fragment(stage, consumers)))
        client_pass = _client_pass(
            [n for n in nodes if n.placement is Placement.CLIENTS],
            [n for n in order if isinstance(n, Aggregate) and levels[n] == turn + 1],
            consumers,
        )
        if client_pass is not None:
            steps.append(client_pass)
    return Plan(dataflow, tuple(steps))


def _on_server(node: Node) -> bool:
    return node.placement is Placement.SERVER and not isinstance(node, Aggregate)


def _topological_order(results: Iterable[Port]) -> list[Node]:
    """Returns the nodes that the results need, in topological order."""
    order, visited = [], set()
    for root in results:
        stack = [(root.node, iter(root.node.inputs))]
        if root.node in visited:
            continue
        visited.add(root.node)
        while stack:
            node, inputs = stack[-1]
            for port in inputs:
                if port.node not in visited:
                    visited.add(port.node)
                    stack.append((port.node, iter(port.node.inputs)))
                    break
            else:
                order.append(node)
                stack.pop()
    return order


def _levels(order: Sequence[Node]) -> Mapping[Node, int]:
    """Returns the number of client passes before each node can be evaluated."""
    levels: dict[Node, int] = {}
    for node in order:
        level = max((levels[port.node] for port in node.inputs), default=0)
        levels[node] = level + isinstance(node, Aggregate)
    return levels


def _turns(
    order: Sequence[Node], levels: Mapping[Node, int], results: Iterable[Port]
) -> Mapping[Node, int]:
    """Returns the turn in which each node runs.

    Server nodes run as early as possible; client nodes run in the first pass that needs
    them, so that a pass runs only what it needs.
    """
    turns = dict(levels)
    needed: dict[Node, int] = {port.node: levels[port.node] for port in results}
    for node in reversed(order):
        if node.placement is Placement.CLIENTS and not isinstance(node, Argument):
            turns[node] = needed.get(node, levels[node])
        # An aggregate is computed by the pass of the turn before its own.
        turn = turns[node] - isinstance(node, Aggregate)
        for port in node.inputs:
            needed[port.node] = min(needed.get(port.node, turn), turn)
    return turns


def _consumers(
    order: Sequence[Node], turns: Mapping[Node, int], results: Iterable[Port]
) -> Mapping[Port, set[object]]:
    """Returns the steps that use each port: (placement, turn) or `None`."""
    consumers: dict[Port, set[object]] = collections.defaultdict(set)
    for node in order:
        if isinstance(node, Aggregate):
            step = (Placement.CLIENTS, turns[node] - 1)
        else:
            step = (node.placement, turns[node])
        for port in node.inputs:
            consumers[port].add(step)
    for port in results:
        consumers[port].add(None)
    for node in order:
        for port in node.outputs():
            # A port that only its own step uses is not an output of the step.
            own = (node.placement, turns[node])
            if isinstance(node, dataflow_lib.Aggregate | Argument):
                continue
            consumers[port].discard(own)
    return consumers


def _fragment(
    nodes: Sequence[Node],
    consumers: Mapping[Port, set[object]],
    outputs: Sequence[Port] | None = None,
) -> Fragment:
    members = set(nodes)
    if outputs is None:
        outputs = [p for n in nodes for p in n.outputs() if consumers.get(p)]
    taken = [port for node in nodes for port in node.inputs]
    inputs = dict.fromkeys(p for p in (*taken, *outputs) if p.node not in members)
    return Fragment(tuple(nodes), tuple(inputs), tuple(outputs))


def _client_pass(
    nodes: Sequence[Node],
    aggregates: Sequence[Aggregate],
    consumers: Mapping[Port, set[object]],
) -> ClientPass | None:
    if not nodes and not aggregates:
        return None
    kept = [p for n in nodes for p in n.outputs() if consumers.get(p)]
    values = [port for aggregate in aggregates for port in aggregate.values]
    fragment = _fragment(nodes, consumers, outputs=[*values, *kept])
    return ClientPass(fragment, tuple(aggregates), tuple(kept))
