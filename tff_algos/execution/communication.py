"""How many bytes clients and server exchange, measured while computations run.

Counted are the tensors that a real deployment would send: to every client what the
server's part of a computation hands to the clients' part (broadcast weights, round
numbers, parameters of encoders), and from every client what an aggregation takes of it
(encoded updates, weights, metrics). What clients keep, such as their examples, their rows
of memory and values for a second pass, is not sent. A tensor that several passes or
aggregations of one call use is sent once.

A `tff.federated_select` counts as sending its whole database to every client.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import tensorflow as tf

from tff_algos import sent_marks
from tff_algos.execution import types
from tff_algos.execution.dataflow import Aggregate, Evaluate, Node, Placement, Port
from tff_algos.execution.plan import ClientPass


@attrs.frozen
class Communication:
    """What clients and server sent each other, over all clients.

    Attributes:
      bytes_down: From the server to the clients.
      bytes_up: From the clients to the server.
    """

    bytes_down: int = 0
    bytes_up: int = 0

    def __add__(self, other: "Communication") -> "Communication":
        return Communication(
            self.bytes_down + other.bytes_down, self.bytes_up + other.bytes_up
        )


class Meter:
    """Adds up the communication of computations.

    Attributes:
      total: The sum so far.
    """

    def __init__(self) -> None:
        self.total = Communication()

    def add(self, communication: Communication) -> None:
        """Adds what one computation, or a part of it, took."""
        self.total += communication


_meters: contextvars.ContextVar[tuple[Meter, ...]] = contextvars.ContextVar(
    "meters", default=()
)


@contextlib.contextmanager
def measured_communication() -> Iterator[Meter]:
    """Measures what the computations called in its body send.

        with tff_algos.execution.measured_communication() as meter:
            output = process.next(state, clients)
        print(meter.total.bytes_up / len(clients), "bytes per client")

    It needs the in-process context or one based on it, such as the Ray context; calls in
    another context are not measured, nor are those of other threads.

    Yields:
      A `Meter`.
    """
    meter = Meter()
    token = _meters.set((*_meters.get(), meter))
    try:
        yield meter
    finally:
        _meters.reset(token)


def record(communication: Communication) -> None:
    """Adds a computation's communication to all meters around it."""
    for meter in _meters.get():
        meter.add(communication)


def _size(tensor: tf.Tensor) -> int:
    if tensor.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(tensor)))
    return tensor.dtype.size * tensor.shape.num_elements()


def _known_size(port: Port) -> int | None:
    """Returns the size of a port's values; `None` if they differ in size."""
    spec = types.tensor_spec(port.type_signature)
    if spec.dtype == tf.string or not spec.shape.is_fully_defined():
        return None
    return spec.dtype.size * spec.shape.num_elements()


def _sent(aggregates: Sequence[Aggregate]) -> set[Port]:
    """Returns what clients send, once each, without what only a simulation collects."""
    return {
        port
        for aggregate in aggregates
        if not sent_marks.is_marked(aggregate.accumulate.graph_def)
        for port in aggregate.values
    }


class SentValues:
    """What clients send to the aggregates of a pass; built once per pass."""

    def __init__(
        self,
        aggregates: Sequence[Aggregate],
        is_stacked: Callable[[Aggregate], bool] = lambda aggregate: False,
    ):
        """Initializes from the aggregates.

        Args:
          aggregates: The aggregates of a pass.
          is_stacked: Whether the values of several clients for an aggregate are stacked,
            not added.
        """
        ports = [(port, each) for each in aggregates for port in each.values]
        sizes = {port: _known_size(port) for port in _sent(aggregates)}
        self._known = sum(size for size in sizes.values() if size is not None)
        first = {port: index for index, (port, _) in reversed([*enumerate(ports)])}
        self._others = {
            index: is_stacked(ports[index][1])
            for port, index in first.items()
            if port in sizes and sizes[port] is None
        }

    def num_bytes(self, values: Sequence[tf.Tensor], num_clients: int) -> int:
        """Returns the size of what some clients send.

        Args:
          values: A tensor for each tensor of the aggregates' values.
          num_clients: The number of clients whose values these are.
        """
        return self._known * num_clients + sum(
            _size(values[index]) * (1 if stacked else num_clients)
            for index, stacked in self._others.items()
        )


def ports_to_clients(client_pass: ClientPass) -> list[Port]:
    """Returns the server's tensors that the clients' part of a pass uses."""
    used = {
        port
        for node in client_pass.fragment.nodes
        for port, fed in zip(node.inputs, _fed(node), strict=True)
        if fed and port.placement is Placement.SERVER
    }
    return [port for port in client_pass.fragment.inputs if port in used]


def _fed(node: Node) -> list[bool]:
    """Returns which of a node's inputs its leaf uses."""
    if isinstance(node, Evaluate):
        return [name is not None for name in node.leaf.inputs]
    return [True] * len(node.inputs)


class Broadcasts:
    """The server's tensors sent to clients in one call of a computation."""

    def __init__(self) -> None:
        self._sent: set[Port] = set()

    def num_bytes(self, tensors: Mapping[Port, tf.Tensor]) -> int:
        """Returns the size of the tensors that have not been sent before."""
        new = [port for port in tensors if port not in self._sent]
        self._sent.update(new)
        return sum(_size(tensors[port]) for port in new)
