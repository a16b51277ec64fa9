"""What travels between the driver and its workers, and what a worker does with it.

A share is some units of a pass: their clients' inputs go to the worker, a `UnitReply`
for each comes back. Nothing here depends on how it travels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import tensorflow as tf

from tff_algos.execution import pass_runner, vectorization
from tff_algos.execution.batched_passes import BatchedPass
from tff_algos.execution.client_passes import (
    ClientError,
    PassInputs,
    StreamingPass,
    UnitOutputs,
)
from tff_algos.execution.dataflow import Placement, Port
from tff_algos.execution.distributed import pass_records, values
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.plan import ClientPass


@attrs.frozen(eq=False)
class UnitInputs:
    """The inputs of a unit's clients.

    Attributes:
      columns: For each input placed at clients, a packed value per client.
      num_clients: The number of clients.
    """

    columns: Sequence[Sequence[Any]]
    num_clients: int


@attrs.frozen(eq=False)
class Failure:
    """Why a unit failed.

    Attributes:
      client: The failing client's position in the unit; `None` if it is not known, as
        of clients that run at once.
      cause: The reason on one line.
    """

    client: int | None
    cause: str


@attrs.frozen(eq=False)
class UnitReply:
    """What a unit computed.

    Attributes:
      values: Packed `UnitOutputs.values`; of several clients that run one by one, their
        sums.
      kept: Packed `UnitOutputs.kept`.
      failure: Why there is nothing of these; `None` for no reason.
      reading_seconds: As in `UnitOutputs`.
    """

    values: Sequence[Any] = ()
    kept: Sequence[Sequence[Any]] = ()
    failure: Failure | None = None
    reading_seconds: float = 0.0


class UnitFailedError(tf.errors.UnknownError):
    """Clients that ran at once failed; which of them is not known."""

    def __init__(self, cause: str):
        super().__init__(None, None, cause)


def unit_inputs(
    inputs: PassInputs,
    ports: Sequence[Port],
    unit: range,
    pack: Callable[[tf.Tensor | tf.data.Dataset], Any] = values.pack,
) -> UnitInputs:
    """Packs the inputs of a unit.

    Args:
      inputs: The inputs of all clients.
      ports: The inputs of the pass.
      unit: The positions of the unit's clients.
      pack: Packs a client's value.

    Raises:
      values.CannotTravelError: If a client's value cannot be sent; names the client.
    """
    columns = []
    for port in ports:
        if port.placement is Placement.CLIENTS:
            column = inputs.clients[port]
            columns.append(
                [_packed(pack, column[p], p, inputs.num_clients) for p in unit]
            )
    return UnitInputs(columns, len(unit))


def _packed(
    pack: Callable[[Any], Any], value: Any, position: int, num_clients: int
) -> Any:
    try:
        return pack(value)
    except values.CannotTravelError as error:
        raise values.CannotTravelError(
            f"Client {position} of {num_clients}: {error}."
        ) from error


def are_sums(client_pass: ClientPass) -> bool:
    """Returns whether clients' values may be added before they are sent."""
    return all(map(vectorization.is_sum, client_pass.aggregates))


class PassOfWorker:
    """A pass in a worker process; built once per worker."""

    def __init__(
        self, serialized: bytes, is_vectorized: bool, resources: pass_runner.Resources
    ):
        """Initializes without tracing.

        Args:
          serialized: The result of `pass_records.to_bytes`.
          is_vectorized: Whether the clients of a unit run at once.
          resources: The worker's resources.
        """
        self._pass = pass_records.from_bytes(serialized)
        self._workers = resources.workers
        self._is_vectorized = is_vectorized
        devices, memory = resources.devices, resources.row_memory
        cache = resources.cache
        self._streaming = StreamingPass(self._pass, devices, memory)
        self._batched = Lazy(
            lambda: BatchedPass(
                self._pass,
                vectorization.vectorize(self._pass.fragment),
                devices,
                cache,
                memory,
            )
        )

    def unpack_server(self, packed: Sequence[Any]) -> dict[Port, tf.Tensor]:
        """Returns the values of the inputs placed at the server."""
        return dict(
            zip(self._ports(Placement.SERVER), map(_tensor, packed), strict=True)
        )

    def run(
        self, server: dict[Port, tf.Tensor], units: Sequence[UnitInputs]
    ) -> list[UnitReply]:
        """Runs units.

        Args:
          server: The values of the inputs placed at the server.
          units: The units.

        Returns:
          A reply to each unit.
        """
        run = self._run_chunk if self._is_vectorized else self._run_clients

        def reply(index: int) -> UnitReply:
            unit = units[index]
            try:
                columns = [_unpacked(column) for column in unit.columns]
                ports = self._ports(Placement.CLIENTS)
                clients = dict(zip(ports, columns, strict=True))
                outputs = run(PassInputs(server, clients, (), unit.num_clients, 0))
            except ClientError as error:
                return UnitReply(failure=Failure(error.position, error.cause))
            except tf.errors.OpError as error:
                return UnitReply(failure=Failure(None, error.message))
            return UnitReply(
                values.pack_all(outputs.values),
                list(map(values.pack_all, outputs.kept)),
                reading_seconds=outputs.reading_seconds,
            )

        return list(self._workers.map_in_order(reply, len(units)))

    def _ports(self, placement: Placement) -> list[Port]:
        return [p for p in self._pass.fragment.inputs if p.placement is placement]

    def _run_chunk(self, inputs: PassInputs) -> UnitOutputs:
        return self._batched().run_chunk(inputs, range(inputs.num_clients))

    def _run_clients(self, inputs: PassInputs) -> UnitOutputs:
        """Runs clients one by one, and adds their values if they are several."""
        first, *others = [
            self._streaming.run_client(inputs, p) for p in range(inputs.num_clients)
        ]
        totals = list(first.values)
        for each in others:
            totals = [a + b for a, b in zip(totals, each.values, strict=True)]
        kept = [own for each in (first, *others) for own in each.kept]
        return UnitOutputs(totals, kept)


def _unpacked(column: Sequence[Any]) -> list[Any]:
    unpacked = []
    for position, packed in enumerate(column):
        try:
            unpacked.append(values.unpack(packed))
        except values.NotReadableError as error:
            raise ClientError(position, len(column), str(error)) from error
    return unpacked


def _tensor(packed: Any) -> tf.Tensor:
    value = values.unpack_in_place(packed)
    if isinstance(value, tf.data.Dataset):
        return tf.data.experimental.to_variant(value)
    return value
