"""Workers of passes in other processes, in the place of this process's threads."""

import itertools
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import attrs

from tff_algos.execution import client_passes, explanation
from tff_algos.execution.client_passes import ClientError, PassWork, UnitOutputs
from tff_algos.execution.dataflow import Placement, Port
from tff_algos.execution.distributed import pass_records, schedule, shares, values
from tff_algos.execution.distributed.fleet import Fleet

_T = TypeVar("_T")

# Workers keep the server's values by these numbers, for all contexts that call them.
_server_keys = itertools.count()

# Smaller values of the server go with every call, which is faster than Ray's store.
_MAX_INLINE_BYTES = 1 << 16


@attrs.define
class Traffic:
    """What one pass took.

    Attributes:
      pass_bytes: Size of the pass, for each worker that did not have it.
      server_bytes: Size of the server's values, for each worker that took part.
      client_bytes: Size of the clients' inputs.
      reply_bytes: Size of the workers' replies.
      worker_seconds: How long the workers computed, added up.
      num_calls: The number of calls.
    """

    pass_bytes: int = 0
    server_bytes: int = 0
    client_bytes: int = 0
    reply_bytes: int = 0
    worker_seconds: float = 0.0
    num_calls: int = 0

    @property
    def sent_bytes(self) -> int:
        """What the driver sent."""
        return self.pass_bytes + self.server_bytes + self.client_bytes


@attrs.frozen(eq=False)
class _SentPass:
    """A pass in Ray's store, as `worker.Worker.run` takes it."""

    key: str
    box: tuple[Any]
    num_bytes: int
    known_to: set[int] = attrs.field(factory=set)


class RemoteWorkers(client_passes.Workers):
    """Runs the units of passes on a fleet.

    Attributes:
      traffic: Of the last pass.
    """

    def __init__(self, ray: Any, fleet: Fleet, clients_per_sum: int = 1):
        """Initializes without sending anything.

        Args:
          ray: The package.
          fleet: The workers.
          clients_per_sum: How many clients' values a worker adds before it sends them,
            where clients run one by one and all aggregates are sums.
        """
        super().__init__(num_threads=1)
        self.traffic = Traffic()
        self._ray = ray
        self._fleet = fleet
        self._clients_per_sum = clients_per_sum
        self._ran_here = False
        self._sent: weakref.WeakKeyDictionary[Any, dict[bool, _SentPass]]
        self._sent = weakref.WeakKeyDictionary()

    def map_units(
        self, work: PassWork, collect: Callable[[range, UnitOutputs], _T]
    ) -> Iterator[_T]:
        """Yields `collect(unit, outputs)` for each unit of a pass, in order.

        Passes whose clients must take turns run in this process.

        Raises:
          ClientError: If a client fails; the first in the order of the clients.
          values.CannotTravelError: If a value cannot be sent.
          schedule.WorkerLostError: If there are no workers for a unit.
          UnitFailedError: If a unit of clients that run at once fails.
        """
        self._ran_here = work.takes_turns
        if work.takes_turns:
            yield from super().map_units(work, collect)
            return
        if not work.units:
            return
        with self._fleet.lock:
            units = self._grouped(work)
            self.traffic = Traffic()
            calls = self._calls(work, units)
            replies = schedule.replies_in_order(calls, len(units))
            try:
                for unit, reply in zip(units, replies, strict=True):
                    yield collect(unit, _outputs(reply, unit, work))
            finally:
                replies.close()

    def describe(self) -> str:
        """Returns how many workers took part, and what was sent."""
        if self._ran_here:
            return "in this process: its random numbers depend on the clients' order"
        size, traffic = explanation.size, self.traffic
        return (
            f"on {self._fleet.num_workers} workers, {traffic.num_calls} calls: sent "
            f"{size(traffic.sent_bytes)}, received {size(traffic.reply_bytes)}"
        )

    def _grouped(self, work: PassWork) -> Sequence[range]:
        """Returns the units, of several clients where a worker adds their values."""
        size = self._clients_per_sum
        if work.is_vectorized or size == 1 or not shares.are_sums(work.client_pass):
            return work.units
        stop = work.units[-1].stop
        return [range(p, min(p + size, stop)) for p in range(0, stop, size)]

    def _calls(self, work: PassWork, units: Sequence[range]) -> "_Calls":
        ports = work.client_pass.fragment.inputs
        packed = [
            values.pack(work.inputs.server[port])
            for port in ports
            if port.placement is Placement.SERVER
        ]
        num_bytes = values.num_bytes(packed)
        content = self._ray.put(packed) if num_bytes > _MAX_INLINE_BYTES else packed
        return _Calls(
            self._fleet,
            self._sent_pass(work),
            (next(_server_keys), (content,), num_bytes),
            work,
            units,
            ports,
            self.traffic,
        )

    def _sent_pass(self, work: PassWork) -> _SentPass:
        """Puts a pass into Ray's store, once."""
        sent = self._sent.setdefault(work.client_pass, {})
        if work.is_vectorized not in sent:
            serialized = pass_records.to_bytes(work.client_pass)
            content = self._ray.put((serialized, work.is_vectorized))
            key = uuid.uuid4().hex
            sent[work.is_vectorized] = _SentPass(key, (content,), len(serialized))
        return sent[work.is_vectorized]


class _Calls:
    """The calls of one pass, for `schedule.replies_in_order`."""

    def __init__(
        self,
        fleet: Fleet,
        sent: _SentPass,
        server: tuple[int, tuple[Any], int],
        work: PassWork,
        units: Sequence[range],
        ports: Sequence[Port],
        traffic: Traffic,
    ):
        self.num_workers = fleet.num_workers
        self.threads_per_worker = fleet.threads_per_worker
        self._fleet = fleet
        self._sent = sent
        self._server_key, self._server_box, self._server_bytes = server
        self._work = work
        self._units = units
        self._ports = ports
        self._traffic = traffic
        self._took_part: set[int] = set()
        self._own: set[int] = set()

    def has_room(self) -> bool:
        return self._fleet.has_room()

    def submit(self, share: range) -> int:
        inputs = [
            shares.unit_inputs(self._work.inputs, self._ports, self._units[number])
            for number in share
        ]
        call, worker = self._fleet.submit(
            lambda actor: actor.run.remote(
                self._sent.key,
                self._sent.box,
                self._server_key,
                self._server_box,
                inputs,
            )
        )
        traffic = self._traffic
        traffic.num_calls += 1
        traffic.client_bytes += sum(values.num_bytes(each.columns) for each in inputs)
        if worker not in self._took_part:
            self._took_part.add(worker)
            traffic.server_bytes += self._server_bytes
        if worker not in self._sent.known_to:
            self._sent.known_to.add(worker)
            traffic.pass_bytes += self._sent.num_bytes
        self._own.add(call)
        return call

    def wait(
        self, seconds: float | None
    ) -> list[tuple[int, Sequence[shares.UnitReply] | None]]:
        ended = []
        for call, reply in self._fleet.wait(seconds):
            if call not in self._own:
                continue  # Of an earlier pass, which was given up.
            if reply is not None:
                self._traffic.worker_seconds += reply.seconds
                self._traffic.reply_bytes += sum(
                    values.num_bytes([each.values, each.kept]) for each in reply.units
                )
            ended.append((call, None if reply is None else reply.units))
        return ended

    def abandon(self, calls: Sequence[int]) -> None:
        self._fleet.cancel(calls)


def _outputs(reply: shares.UnitReply, unit: range, work: PassWork) -> UnitOutputs:
    """Returns a unit's outputs as tensors of this process."""
    failure = reply.failure
    if failure is not None:
        if failure.client is None:
            raise shares.UnitFailedError(failure.cause)
        position = unit.start + failure.client
        raise ClientError(position, work.inputs.num_clients, failure.cause)
    return UnitOutputs(
        values.unpack_all(reply.values), list(map(values.unpack_all, reply.kept))
    )
