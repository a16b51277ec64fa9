"""Streaming client passes: clients run one by one in several threads.

A pass is divided into units, each one client or one chunk of clients. Their values are
accumulated in the order of the clients, so results do not depend on the number of
threads, and at most twice as many values as threads are alive.
"""

import collections
import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Self, TypeVar

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import messages
from tff_algos.execution import (
    accumulation,
    client_batches,
    graph_contents,
    graph_functions,
)
from tff_algos.execution.client_batches import ClientBatches
from tff_algos.execution.communication import SentValues
from tff_algos.execution.dataflow import Placement, Port
from tff_algos.execution.kept_values import KeptValues
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.plan import ClientPass
from tff_algos.execution.row_memory import RowMemory

_T = TypeVar("_T")

_THREAD_NAME = "tff_algos-client"

Tensors = Sequence[tf.Tensor]

# TensorFlow frees it with the graph, and TFF keeps only the graph's text.
_FREED_FUNCTION = (
    "the Python function of a tf.py_function or tf.numpy_function is no longer there. "
    "Call it in a tf.function with an input_signature, get its concrete function, and "
    "keep that as long as the computation."
)
# cuDNN says so in an error of another class, once for each algorithm that it tried.
_NO_MEMORY = "RESOURCE_EXHAUSTED"
_MAX_NO_MEMORY = 160


class ClientError(RuntimeError):
    """A client's computation failed.

    Attributes:
      position: The client's position in the list of clients, from 0.
      cause: What failed, without the client's position.
    """

    def __init__(self, position: int, num_clients: int, message: str):
        super().__init__(f"Client {position} of {num_clients}: {message}")
        self.position = position
        self.cause = message
        self._num_clients = num_clients

    def __reduce__(self) -> tuple[type[Self], tuple[int, int, str]]:
        # By default, unpickling calls the class with the message alone.
        return type(self), (self.position, self._num_clients, self.cause)


def cause(error: tf.errors.OpError) -> str:
    """Returns an op's own message, without its location and Python's traceback.

    If memory ran out, it says what takes less.
    """
    own = error.message.rpartition("<stack traces unavailable>\n")[2]
    own = own.partition("\n\t [[")[0].partition("\nTraceback (most recent call last")[0]
    own = re.sub(r"^\{\{function_node [^}]*\}\} | \[Op:\w+\] name: ?$", "", own.strip())
    if isinstance(error, tf.errors.ResourceExhaustedError) or _NO_MEMORY in own:
        return (
            "memory ran out; run fewer clients per round, smaller batches or a smaller "
            f"model. TensorFlow: {messages.shortened(own, _MAX_NO_MEMORY)}"
        )
    return _FREED_FUNCTION if re.search("find callback with key=pyfunc", own) else own


class ReadOnce:
    """The batches of datasets that may not be readable a second time.

    Attributes:
      is_complete: Whether all that were put are there; False if they were too large.
    """

    def __init__(self, max_bytes: int):
        self.is_complete = True
        self._batches: dict[tuple[Port, int], ClientBatches] = {}
        self._left = max_bytes
        self._lock = threading.Lock()

    def put(self, port: Port, position: int, batches: ClientBatches) -> None:
        """Keeps a client's batches, or if memory is used up none at all."""
        with self._lock:
            self._left -= batches.num_bytes
            self.is_complete = self._left >= 0
            if self.is_complete:
                self._batches[port, position] = batches
            else:
                self._batches.clear()

    def __iter__(self) -> Iterator[tuple[Port, int, ClientBatches]]:
        for (port, position), batches in self._batches.items():
            yield port, position, batches


@attrs.frozen(eq=False)
class PassInputs:
    """The inputs of a pass.

    Attributes:
      server: A tensor for each input placed at the server.
      clients: For each input placed at clients, a tensor or a dataset per client.
      zeros: A tensor for each tensor of the aggregates' accumulators.
      num_clients: The number of clients.
      max_kept_bytes: Memory limit for kept values, whose excess is written to a file, and
        for `read_once`.
      read_once: What a vectorized pass has read of datasets that may be spent.
    """

    server: dict[Port, tf.Tensor]
    clients: dict[Port, Sequence[tf.Tensor | tf.data.Dataset]]
    zeros: Tensors
    num_clients: int
    max_kept_bytes: int
    read_once: ReadOnce = attrs.field(
        default=attrs.Factory(lambda self: ReadOnce(self.max_kept_bytes), True)
    )

    def to_read_again(self) -> "PassInputs":
        """Returns the same inputs, with what was read in place of spent datasets."""
        # Other columns stay as they are: values may be in a file.
        spent = {port for port, _, _ in self.read_once}
        clients = self.clients | {port: list(self.clients[port]) for port in spent}
        for port, position, read in self.read_once:
            dataset = clients[port][position]
            clients[port][position] = client_batches.as_dataset(read, dataset)
        return attrs.evolve(self, clients=clients)


@attrs.frozen(eq=False)
class PassResult:
    """The results of a pass.

    Attributes:
      accumulators: A tensor for each tensor of the aggregates' accumulators.
      kept: For each kept output of the pass, a tensor per client.
      bytes_up: Size of what the clients sent to the aggregates.
      reading_seconds: How long vectorized work waited for clients' data, added up over
        threads and processes.
    """

    accumulators: Tensors
    kept: Sequence[Sequence[tf.Tensor]]
    bytes_up: int = 0
    reading_seconds: float = 0.0


@attrs.frozen(eq=False)
class UnitOutputs:
    """What a unit of a pass computes.

    Attributes:
      values: A tensor for each tensor of the aggregates' values: the client's, or of a
        vectorized unit the sum or the stack of its clients' values.
      kept: For each client, a tensor for each kept output of the pass.
      reading_seconds: How long vectorized work waited for its clients' data.
    """

    values: Tensors
    kept: Sequence[Tensors]
    reading_seconds: float = 0.0


@attrs.frozen(eq=False)
class PassWork:
    """The work of one run of a pass, which `Workers` divide.

    Attributes:
      client_pass: The pass.
      is_vectorized: Whether a unit is a chunk of clients that run at once.
      takes_turns: Whether units must not run concurrently, or in other processes.
      inputs: The inputs of all clients.
      units: The positions of each unit's clients, in order.
      run: Runs a unit in this process; threads may call it concurrently.
    """

    client_pass: ClientPass
    is_vectorized: bool
    takes_turns: bool
    inputs: PassInputs
    units: Sequence[range]
    run: Callable[[range], UnitOutputs]


class StreamingPass:
    """Runs a client pass client by client; built once per plan."""

    def __init__(
        self,
        client_pass: ClientPass,
        devices: Sequence[str | None],
        memory: RowMemory,
    ):
        """Initializes without tracing.

        Args:
          client_pass: The pass to run.
          devices: The devices; clients alternate between them.
          memory: The memory for rows of clients' values.
        """
        self._pass = client_pass
        self._takes_turns = any(
            graph_contents.takes_turns(node.leaf.graph_def)
            for node in client_pass.fragment.nodes
        )
        if self._takes_turns:
            # Each device's function would have random sequences of its own.
            devices = devices[:1]
        self._work = [
            Lazy(lambda d=device: graph_functions.build(client_pass.fragment, d))
            for device in devices
        ]
        self._sent = SentValues(client_pass.aggregates)
        self._accumulation = accumulation.Accumulation(
            client_pass.aggregates,
            devices[0],
            memory,
            lambda folded: graph_functions.build_accumulate(folded, devices[0]),
        )
        # Calls that no client's dataset made.
        self._running: set[object] = set()

    def run(self, inputs: PassInputs, workers: "Workers") -> PassResult:
        """Runs the pass over all clients.

        Args:
          inputs: The inputs.
          workers: The threads to use.

        Returns:
          The results.

        Raises:
          ClientError: If the work of a client fails.
          RuntimeError: If a client's dataset calls a computation of which another call
            is running, which may be the one that reads the dataset.
        """
        if _in_a_dataset():
            # One of TensorFlow's threads reads all datasets of a function.
            if self._running:
                raise RuntimeError(
                    "A Python generator in a client's dataset called a computation of "
                    "which another call is running. If that call reads this dataset, "
                    "each would wait for the other."
                )
            return self._run(inputs, workers)
        this_call = object()
        self._running.add(this_call)
        try:
            return self._run(inputs, workers)
        finally:
            self._running.remove(this_call)

    def _run(self, inputs: PassInputs, workers: "Workers") -> PassResult:
        running = self._accumulation.start(inputs.zeros, inputs.num_clients)
        kept = KeptValues(len(self._pass.kept), inputs.max_kept_bytes)
        work = PassWork(
            self._pass,
            is_vectorized=False,
            takes_turns=self._takes_turns or _share_state(inputs),
            inputs=inputs,
            units=[range(p, p + 1) for p in range(inputs.num_clients)],
            run=lambda unit: self.run_client(inputs, unit.start),
        )

        def collect(unit: range, outputs: UnitOutputs) -> tuple[Tensors, Sequence, int]:
            try:
                rest = running.collect(outputs.values, unit.start, stacked=False)
            except tf.errors.InvalidArgumentError as error:
                raise ClientError(
                    unit.start, inputs.num_clients, cause(error)
                ) from error
            return rest, outputs.kept, self._sent.num_bytes(outputs.values, len(unit))

        bytes_up = 0
        for values, own, sent in workers.map_units(work, collect):
            for each in own:
                kept.append(each)
            running.add(values)
            bytes_up += sent
        return PassResult(running.result(), kept.columns, bytes_up)

    def run_client(self, inputs: PassInputs, position: int) -> UnitOutputs:
        """Runs one client.

        Args:
          inputs: The inputs of all clients.
          position: The client's position.

        Raises:
          ClientError: If the client's work fails.
        """
        outputs = self._run_client(inputs, position)
        num_values = len(outputs) - len(self._pass.kept)
        return UnitOutputs(outputs[:num_values], [outputs[num_values:]])

    def _run_client(self, inputs: PassInputs, position: int) -> Tensors:
        with naming_client(inputs, position):
            arguments = [
                inputs.server[port]
                if port.placement is Placement.SERVER
                else as_tensor(inputs.clients[port][position])
                for port in self._pass.fragment.inputs
            ]
        try:
            return self._work[position % len(self._work)]()(*arguments)
        except tf.errors.OpError as error:
            raise ClientError(position, inputs.num_clients, cause(error)) from error


def _share_state(inputs: PassInputs) -> bool:
    """Returns whether reading one client's datasets changes what another reads."""
    columns = [
        column
        for port, column in inputs.clients.items()
        if isinstance(port.type_signature, tff.SequenceType)
    ]
    clients = zip(*columns, strict=True) if columns else ()
    return client_batches.share_state(
        [each for each in values if isinstance(each, tf.data.Dataset)]
        for values in clients
    )


@contextlib.contextmanager
def naming_client(inputs: PassInputs, position: int) -> Iterator[None]:
    """Raises `ClientError` for whatever goes wrong where a client's data are read."""
    try:
        yield
    except tf.errors.OpError as error:
        raise ClientError(position, inputs.num_clients, cause(error)) from error
    except Exception as error:  # Whatever a user's function raises.
        reason = f"its data cannot be read ({messages.one_line(error)})"
        raise ClientError(position, inputs.num_clients, reason) from error


def as_tensor(value: tf.Tensor | tf.data.Dataset) -> tf.Tensor:
    """Returns a tensor unchanged, or the variant tensor of a dataset."""
    if isinstance(value, tf.data.Dataset):
        return tf.data.experimental.to_variant(value)
    return value


class Workers:
    """Threads that run clients' work, shared by all computations of a context.

    Attributes:
      num_threads: The number of threads.
    """

    def __init__(self, num_threads: int):
        self.num_threads = num_threads
        self._threads = futures.ThreadPoolExecutor(
            num_threads, thread_name_prefix=_THREAD_NAME
        )

    def map_units(
        self, work: PassWork, collect: Callable[[range, UnitOutputs], _T]
    ) -> Iterator[_T]:
        """Yields `collect(unit, outputs)` for each unit of a pass, in order.

        Args:
          work: The work.
          collect: Called once per unit, concurrently for different units.

        Raises:
          Exception: The exception of the first unit that fails.
        """

        def run(index: int) -> _T:
            unit = work.units[index]
            return collect(unit, work.run(unit))

        return self.map_in_order(run, len(work.units), one_at_a_time=work.takes_turns)

    def is_serial(self, count: int) -> bool:
        """Returns whether the caller itself would make so many calls, one by one."""
        return self.num_threads == 1 or count <= 1 or _in_a_dataset()

    def describe(self) -> str:
        """Returns where the last pass ran, if not in this process, and what it sent."""
        return ""

    def map_in_order(
        self,
        function: Callable[[int], _T],
        count: int,
        one_at_a_time: bool = False,
    ) -> Iterator[_T]:
        """Yields `function(0)`, `function(1)`, ..., which run concurrently.

        At most twice as many results as threads are pending. If a call fails or the
        caller stops, calls that have not started are dropped. A Python generator in a
        client's dataset may call computations: they run in its own thread, because the
        threads may all be waiting for such generators.

        Args:
          function: The function to call in the threads.
          count: The number of calls.
          one_at_a_time: Whether each call waits for the previous one to end.

        Raises:
          Exception: The exception of the first position that fails.
        """
        if one_at_a_time or self.is_serial(count):
            yield from map(function, range(count))
            return
        pending: collections.deque[futures.Future] = collections.deque()
        remaining = iter(range(count))
        try:
            for position in remaining:
                pending.append(self._threads.submit(function, position))
                if len(pending) == 2 * self.num_threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
            futures.wait(pending)


def _in_a_dataset() -> bool:
    """Returns whether the caller may be Python code that a client's dataset calls.

    TensorFlow calls it in a thread of its own, which Python did not start, or in the
    thread that runs the client.
    """
    thread = threading.current_thread()
    is_tensorflows = isinstance(thread, threading._DummyThread)
    return is_tensorflows or thread.name.startswith(_THREAD_NAME)
