"""Fragments of a plan as TensorFlow functions."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tff_algos.execution import leaves as leaves_lib
from tff_algos.execution import sequences, tracing, types
from tff_algos.execution.dataflow import Aggregate, Evaluate, Node, Port, Select
from tff_algos.execution.plan import Fragment

GetLeaf = Callable[[leaves_lib.Leaf], leaves_lib.Leaf]


def build(fragment: Fragment, device: str | None = None) -> tracing.Function:
    """Builds one function of a fragment.

    Args:
      fragment: The fragment; its leaves' dataset reductions become loops.
      device: The device for ops without a device.

    Returns:
      A function from one tensor per input of the fragment to one per output.
    """

    on_cpu = device is not None and "CPU" in device

    def with_loops(leaf: leaves_lib.Leaf) -> leaves_lib.Leaf:
        return leaf.with_loops_on_cpu if on_cpu else leaf.with_loops

    def run(*inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(device):
            return evaluate(fragment, inputs, with_loops)

    return tracing.trace(run, _specs(fragment.inputs))


def build_accumulate(
    aggregates: Sequence[Aggregate], device: str | None = None
) -> tracing.Function:
    """Builds one function that adds a client's values to all accumulators.

    Args:
      aggregates: The aggregates of one client pass.
      device: As in `build`.

    Returns:
      A function from all accumulators' tensors, then all values' tensors, to all new
      accumulators' tensors.
    """
    totals = [port for aggregate in aggregates for port in aggregate.outputs()]
    values = [port for aggregate in aggregates for port in aggregate.values]

    def accumulate(*inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(device):
            return accumulate_each(
                aggregates, inputs[: len(totals)], inputs[len(totals) :]
            )

    return tracing.trace(accumulate, _specs([*totals, *values]))


def accumulate_each(
    aggregates: Sequence[Aggregate],
    accumulators: Sequence[tf.Tensor],
    values: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Adds values to accumulators in the current graph, for each aggregate."""
    results, remaining, taken = [], list(accumulators), list(values)
    for aggregate in aggregates:
        num_zeros = len(aggregate.zeros)
        old, remaining = remaining[:num_zeros], remaining[num_zeros:]
        new, taken = taken[: aggregate.num_values], taken[aggregate.num_values :]
        results += aggregate.accumulate.with_loops([*old, *new])
    return results


def _specs(ports: Sequence[Port]) -> list[tf.TensorSpec]:
    return [types.tensor_spec(port.type_signature) for port in ports]


def evaluate(
    fragment: Fragment, inputs: Sequence[tf.Tensor], get_leaf: GetLeaf
) -> list[tf.Tensor]:
    """Evaluates a fragment in the current graph.

    Args:
      fragment: The fragment.
      inputs: A tensor for each of the fragment's inputs.
      get_leaf: Returns the form in which to import a leaf.

    Returns:
      A tensor for each of the fragment's outputs.
    """
    tensors = dict(zip(fragment.inputs, inputs, strict=True))
    for node in fragment.nodes:
        arguments = [tensors[port] for port in node.inputs]
        outputs = _evaluate_node(node, arguments, get_leaf)
        tensors.update(zip(node.outputs(), outputs, strict=True))
    return [tf.identity(tensors[port]) for port in fragment.outputs]


def _evaluate_node(
    node: Node, arguments: Sequence[tf.Tensor], get_leaf: GetLeaf
) -> Sequence[tf.Tensor]:
    match node:
        case Evaluate():
            return get_leaf(node.leaf)(arguments)
        case Select():
            return [_selected(node, arguments, get_leaf)]
        case _:
            raise TypeError(f"Expected a node to evaluate, found {node}.")


def _selected(
    node: Select, arguments: Sequence[tf.Tensor], get_leaf: GetLeaf
) -> tf.Tensor:
    keys, *server_value = arguments
    element = sequences.Element(node.element_type)

    def select(key: tf.Tensor) -> Any:
        # An import cannot use tensors of an outer graph; `tf.identity` captures them.
        captured = [tf.identity(tensor) for tensor in server_value]
        flat = get_leaf(node.leaf)([*captured, key])
        return element.pack(flat)

    dataset = tf.data.Dataset.from_tensor_slices(keys).map(select)
    return tf.data.experimental.to_variant(dataset)
