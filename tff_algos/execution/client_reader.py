"""Reads what a client's vectorized work reduces.

Datasets are read before the work runs, once for each reduction: a dataset that shuffles
has another order every time. Reductions share what they would read alike.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.execution import chunk_functions, client_batches, graph_contents
from tff_algos.execution.array_dataset import InMemoryDataset
from tff_algos.execution.client_batches import Beginning, ClientBatches
from tff_algos.execution.client_passes import (
    PassInputs,
    Tensors,
    Workers,
    as_tensor,
    naming_client,
)
from tff_algos.execution.dataflow import Placement, Port
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.vectorization import VectorizedWork


class ClientReader:
    """Reads clients' datasets; built once per plan."""

    def __init__(self, work: VectorizedWork, cache: client_batches.BatchCache):
        """Initializes without tracing.

        Args:
          work: The work of the clients.
          cache: The cache of clients' batches.
        """
        self._work = work
        self._cache = cache
        self._read_data = Lazy(lambda: chunk_functions.build_data(work))
        self._computes = None in work.data_inputs
        used = set(work.data_inputs)
        if self._computes:
            # What is computed may depend on all inputs that are fed.
            used |= {i for i, name in enumerate(work.data.inputs) if name is not None}
        self._datasets = [
            port
            for number, port in enumerate(work.fragment.inputs)
            if number in used and isinstance(port.type_signature, tff.SequenceType)
        ]
        direct = {work.fragment.inputs[n] for n in work.data_inputs if n is not None}
        self._transformed = {port for port in self._datasets if port not in direct}
        self._takes_turns = graph_contents.takes_turns(work.data.graph_def)

    def takes_turns(
        self, inputs: PassInputs, positions: Sequence[int] | None = None
    ) -> bool:
        """Returns whether concurrent readings affect each other's random numbers.

        Args:
          inputs: The inputs of all clients.
          positions: The clients; None for all.
        """
        if positions is None:
            positions = range(inputs.num_clients)
        clients = (self._iterated(inputs, position) for position in positions)
        return self._takes_turns or client_batches.share_state(clients)

    def read(self, inputs: PassInputs, position: int) -> list[ClientBatches]:
        """Returns a client's batches for each reduction.

        Raises:
          ClientError: If reading fails; not `OpError`, after which a pass would read again.
        """
        if self._computes:
            # Traced outside of `naming_client`: some work cannot be vectorized.
            self._read_data()
        with naming_client(inputs, position):
            return self._read_reductions(inputs, position)

    def read_clients(
        self, inputs: PassInputs, positions: Sequence[int], workers: Workers | None
    ) -> Iterator[list[ClientBatches]]:
        """Yields the batches of several clients, in order.

        Args:
          inputs: The inputs of all clients.
          positions: The clients.
          workers: Threads that read clients in advance, unless they run the caller.

        Raises:
          ClientError: If reading fails.
        """

        def read(index: int) -> list[ClientBatches]:
            return self.read(inputs, positions[index])

        count = len(positions)
        if (
            workers is None
            or workers.is_serial(count)
            or not self._may_read_at_once(inputs, positions)
        ):
            yield from map(read, range(count))
        else:
            yield from workers.map_in_order(read, count)

    def _may_read_at_once(self, inputs: PassInputs, positions: Sequence[int]) -> bool:
        """Returns whether threads give the same batches, and are worth their start."""
        datasets = [
            each for position in positions for each in self._iterated(inputs, position)
        ]
        # Python runs in one thread at a time, and its generators may share anything.
        return bool(
            datasets
            and not any(map(client_batches.may_be_spent, datasets))
            and not any(map(client_batches.has_captured_state, datasets))
            and not self.takes_turns(inputs, positions)
        )

    def _iterated(self, inputs: PassInputs, position: int) -> Iterator[tf.data.Dataset]:
        """Yields a client's datasets whose reading takes an iterator of `tf.data`."""
        for port in self._datasets:
            value = _value(inputs, port, position)
            if (
                isinstance(value, tf.data.Dataset)
                and not isinstance(value, InMemoryDataset)
                and self._cache.get(value) is None
            ):
                yield value

    def _read_reductions(
        self, inputs: PassInputs, position: int
    ) -> list[ClientBatches]:
        spent = self._read_spent(inputs, position)
        begun = self._begin(inputs, position, spent)
        while True:
            try:
                read = self._read_with(inputs, position, spent, begun)
            except Exception:
                if not any(each.fell_short for each in begun.values()):
                    raise
            short = [each for each in begun.values() if each.fell_short]
            for each in short:
                each.read_on()
            if not short:
                break
        for port, beginning in begun.items():
            inputs.read_once.put(port, position, beginning.batches)
        return read

    def _read_with(
        self,
        inputs: PassInputs,
        position: int,
        spent: Mapping[Port, ClientBatches],
        begun: Mapping[Port, Beginning],
    ) -> list[ClientBatches]:
        known = {*spent, *begun}
        variants = None
        result: list[ClientBatches] = []
        for index, source in enumerate(self._work.data_inputs):
            first = self._work.same_data[index]
            if first < index and self._repeats(inputs, position, index, known):
                result.append(result[first])
                continue
            specs = self._work.reductions[index].element_specs
            if source is None:
                variants = variants or self._make_data(inputs, position, spent, begun)
                result.append(client_batches.read(variants[index], specs))
                continue
            port = self._work.fragment.inputs[source]
            whole = spent.get(port)
            if whole is None:
                whole = self._cache.read(_value(inputs, port, position), specs)
            result.append(whole)
        return result

    def _begin(
        self,
        inputs: PassInputs,
        position: int,
        spent: Collection[Port],
    ) -> dict[Port, Beginning]:
        """Begins to read the datasets that may be spent and that the work transforms."""
        values = {port: _value(inputs, port, position) for port in self._transformed}
        return {
            port: Beginning(value)
            for port, value in values.items()
            if port not in spent and client_batches.may_be_spent(value)
        }

    def _read_spent(
        self, inputs: PassInputs, position: int
    ) -> dict[Port, ClientBatches]:
        """Reads the datasets of a client that may yield their elements only once.

        Not those that the work transforms before it reduces what it takes of them.
        """
        spent = {}
        for port in self._datasets:
            if port in self._transformed:
                continue
            value = _value(inputs, port, position)
            if self._cache.get(value) is None and client_batches.may_be_spent(value):
                specs = tf.nest.flatten(value.element_spec)
                spent[port] = self._cache.read(value, specs)
                # Cached datasets yield the same elements every time.
                if self._cache.get(value) is None:
                    inputs.read_once.put(port, position, spent[port])
        return spent

    def _repeats(
        self,
        inputs: PassInputs,
        position: int,
        index: int,
        spent: Collection[Port],
    ) -> bool:
        """Returns whether a dataset yields the same elements at every reading."""
        source = self._work.data_inputs[index]
        ports = self._datasets
        if source is not None:
            ports = [self._work.fragment.inputs[source]]
        elif self._work.may_vary[index]:
            return False
        values = [_value(inputs, port, position) for port in ports if port not in spent]
        return all(
            isinstance(value, tf.data.Dataset) and client_batches.is_repeatable(value)
            for value in values
        )

    def _make_data(
        self,
        inputs: PassInputs,
        position: int,
        spent: Mapping[Port, ClientBatches],
        begun: Mapping[Port, Beginning],
    ) -> Tensors:
        arguments = []
        for port, name in zip(
            self._work.fragment.inputs, self._work.data.inputs, strict=True
        ):
            if name is None:
                continue
            value = _value(inputs, port, position)
            if port in spent:
                value = client_batches.as_dataset(spent[port], value)
            if port in begun:
                value = begun[port].dataset()
            arguments.append(as_tensor(value))
        return self._read_data()(*arguments)


def _value(
    inputs: PassInputs, port: Port, position: int
) -> tf.Tensor | tf.data.Dataset:
    """Returns a client's value of an input."""
    if port.placement is Placement.SERVER:
        return inputs.server[port]
    return inputs.clients[port][position]
