"""Workers of passes in other processes, in the place of this process's threads."""

import functools
import itertools
import operator
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import attrs

from tff_algos.execution import client_passes, explanation
from tff_algos.execution.client_passes import ClientError, PassWork, UnitOutputs
from tff_algos.execution.dataflow import Placement
from tff_algos.execution.distributed import (
    kept_datasets,
    pass_records,
    schedule,
    shares,
    values,
)
from tff_algos.execution.distributed.fleet import Fleet

_T = TypeVar("_T")

# Workers keep the server's values by these numbers, for all contexts that call them.
_server_keys = itertools.count()

# Smaller values of the server go with every call, which is faster than Ray's store.
_MAX_INLINE_BYTES = 1 << 16


@attrs.define
class Traffic:
    """What passes over clients took.

    Attributes:
      pass_bytes: Size of the pass, for each worker that did not have it.
      server_bytes: Size of the server's values, for each worker that took part.
      client_bytes: Size of the clients' inputs, without what workers keep.
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

    def __add__(self, other: "Traffic") -> "Traffic":
        mine, theirs = attrs.astuple(self), attrs.astuple(other)
        return Traffic(*map(operator.add, mine, theirs))

    def __sub__(self, other: "Traffic") -> "Traffic":
        mine, theirs = attrs.astuple(self), attrs.astuple(other)
        return Traffic(*map(operator.sub, mine, theirs))


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
      total_traffic: Of all passes.
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
        self.total_traffic = Traffic()
        self._ray = ray
        self._fleet = fleet
        self._clients_per_sum = clients_per_sum
        self._ran_here = False
        self._directory = kept_datasets.Directory()
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
                self.total_traffic += self.traffic

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
            self._directory,
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


@attrs.frozen
class _Call:
    """A call that runs.

    Attributes:
      share: Its units.
      worker: The number of the worker.
      first: The number of the first call for the share; others were sent again because
        the worker lacked datasets.
    """

    share: range
    worker: int
    first: int


class _Calls:
    """The calls of one pass, for `schedule.replies_in_order`."""

    def __init__(
        self,
        fleet: Fleet,
        sent: _SentPass,
        server: tuple[int, tuple[Any], int],
        work: PassWork,
        units: Sequence[range],
        directory: kept_datasets.Directory,
        traffic: Traffic,
    ):
        self.num_workers = fleet.num_workers
        self.threads_per_worker = fleet.threads_per_worker
        self._fleet = fleet
        self._sent = sent
        self._server_key, self._server_box, self._server_bytes = server
        self._work = work
        self._units = units
        self._directory = directory
        self._traffic = traffic
        self._took_part: set[int] = set()
        # By the number of the call.
        self._running: dict[int, _Call] = {}

    def has_room(self) -> bool:
        return self._fleet.has_room()

    def submit(self, share: range) -> int:
        return self._submit(share, None)

    def _submit(self, share: range, first: int | None) -> int:
        """Sends a share, again if `first` is the number of an earlier call."""
        number, worker = self._send(share)
        first = number if first is None else first
        self._running[number] = _Call(share, worker, first)
        return number

    def _send(self, share: range) -> tuple[int, int]:
        """Calls the least busy worker; returns the number of the call and of it."""
        sent, traffic = self._sent, self._traffic

        def run(actor: Any, worker: int) -> Any:
            pack = functools.partial(self._directory.pack, worker=worker)
            inputs = [self._inputs(self._units[number], pack) for number in share]
            traffic.client_bytes += sum(
                kept_datasets.num_bytes(column)
                for unit in inputs
                for column in unit.columns
            )
            return actor.run.remote(
                sent.key,
                sent.box,
                self._server_key,
                self._server_box,
                inputs,
                self._directory.to_drop(worker),
            )

        call, worker = self._fleet.submit(len(share), run)
        traffic.num_calls += 1
        if worker not in self._took_part:
            self._took_part.add(worker)
            traffic.server_bytes += self._server_bytes
        if worker not in sent.known_to:
            sent.known_to.add(worker)
            traffic.pass_bytes += sent.num_bytes
        return call, worker

    def _inputs(self, unit: range, pack: Callable[[Any], Any]) -> shares.UnitInputs:
        ports = self._work.client_pass.fragment.inputs
        return shares.unit_inputs(self._work.inputs, ports, unit, pack)

    def wait(
        self, seconds: float | None
    ) -> list[tuple[int, Sequence[shares.UnitReply] | None]]:
        ended = []
        for number, reply in self._fleet.wait(seconds):
            call = self._running.pop(number, None)
            if call is None:
                continue  # Of an earlier pass, which was given up.
            if reply is None:
                self._directory.forget(call.worker)
                ended.append((call.first, None))
                continue
            self._directory.forget(call.worker, [*reply.missing, *reply.evicted])
            if reply.missing and self._fleet.has_room():
                self._submit(call.share, call.first)
                continue
            if reply.missing:
                # The worker was lost meanwhile, and so is its share.
                ended.append((call.first, None))
                continue
            self._traffic.worker_seconds += reply.seconds
            self._traffic.reply_bytes += sum(
                values.num_bytes([each.values, each.kept]) for each in reply.units
            )
            ended.append((call.first, reply.units))
        return ended

    def abandon(self, calls: Sequence[int]) -> None:
        dropped = {n: c for n, c in self._running.items() if c.first in set(calls)}
        for call in dropped.values():
            # The worker keeps nothing of a call that does not start.
            self._directory.forget(call.worker)
        self._fleet.cancel(list(dropped))


def _outputs(reply: shares.UnitReply, unit: range, work: PassWork) -> UnitOutputs:
    """Returns a unit's outputs as tensors of this process."""
    failure = reply.failure
    if failure is not None:
        if failure.client is None:
            raise shares.UnitFailedError(failure.cause)
        position = unit.start + failure.client
        raise ClientError(position, work.inputs.num_clients, failure.cause)
    return UnitOutputs(
        list(map(values.unpack_in_place, reply.values)),
        list(map(values.unpack_all, reply.kept)),
        reply.reading_seconds,
    )
