"""Workers as Ray actors: starting them, calling them, and replacing lost ones."""

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from absl import logging

from tff_algos import messages
from tff_algos.execution import op_threads
from tff_algos.execution.distributed import schedule, worker
from tff_algos.execution.distributed.cluster import (
    Cluster,
    ClusterError,
    worker_environment,
)

# Ray has places of its own for these; all others are "resources" by name.
_OWN_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
# After so many that do not start in turn, no other worker is started.
_MAX_FAILED_STARTS = 3
_POLL_SECONDS = 10.0


@attrs.frozen
class _Call:
    """A call of a worker.

    Attributes:
      number: Its number among all calls.
      num_units: The number of units of its share.
    """

    number: int
    num_units: int


@attrs.define(eq=False)
class _Member:
    """A worker.

    Attributes:
      number: Its number in messages.
      actor: Its Ray actor.
      start: The call that ends when it has started; `None` afterwards.
      info: What it is, once it has started.
      calls: Its calls by their references, in order.
    """

    number: int
    actor: Any
    start: Any
    info: worker.WorkerInfo | None = None
    calls: dict[Any, _Call] = attrs.field(factory=dict)


class Fleet:
    """Workers that run shares of any pass; one pass at a time.

    Attributes:
      num_workers: The number of workers, lost ones that are replaced included.
      threads_per_worker: How many units a worker computes at a time.
      lock: Held during a pass.
    """

    def __init__(
        self,
        cluster: Cluster,
        num_workers: int,
        resources_per_worker: Mapping[str, float],
        start_seconds: float,
        max_cached_bytes: int = 1 << 30,
        intra_op_threads: int | None = None,
    ):
        """Starts the workers and waits for all of them.

        Args:
          cluster: Where to start them.
          num_workers: The number of workers.
          resources_per_worker: What each of them takes, by Ray's names.
          start_seconds: How long to wait, also for another worker if all are lost.
          max_cached_bytes: Each worker's memory for clients' datasets and batches.
          intra_op_threads: How many threads a worker uses within an op; `None` for as
            many as this process.

        Raises:
          ClusterError: If a worker does not start in time, or is not like this process.
        """
        self.num_workers = num_workers
        self.threads_per_worker = max(1, int(resources_per_worker.get("CPU", 1)))
        self.lock = threading.RLock()
        self._ray = cluster.ray
        self._numbers = itertools.count()
        self._call_numbers = itertools.count()
        self._failed_starts = 0
        self._start_seconds = start_seconds
        self._alone_since: float | None = None
        self._closed = False
        self._members: list[_Member] = []
        self._resources = dict(resources_per_worker)
        self._max_cached_bytes = max_cached_bytes
        self._intra_op_threads = intra_op_threads or op_threads.count()
        try:
            for _ in range(num_workers):
                self._add()
            self._wait_for_all(start_seconds)
        except BaseException:
            self.close()
            raise

    @property
    def infos(self) -> list[worker.WorkerInfo]:
        """The workers that have started."""
        return [each.info for each in self._members if each.info is not None]

    def close(self) -> None:
        """Ends the workers; idempotent."""
        # At the end of the program, Ray may have ended before.
        if self._ray.is_initialized():
            for member in self._members:
                self._ray.kill(member.actor)
        self._members = []
        self._closed = True

    def has_room(self) -> bool:
        """Returns whether a worker takes another share now."""
        return self._least_busy() is not None

    def _least_busy(self) -> _Member | None:
        started = [member for member in self._members if member.info]
        position = schedule.least_busy(
            [[call.num_units for call in each.calls.values()] for each in started]
        )
        return None if position is None else started[position]

    def submit(self, num_units: int, run: Callable[[Any, int], Any]) -> tuple[int, int]:
        """Calls the least busy worker; `has_room` said that there is one.

        Args:
          num_units: The number of units of the share.
          run: Maps the worker's actor and its number to the reference of the call's
            result.

        Returns:
          The number of the call and the number of the worker.
        """
        member = self._least_busy()
        number = next(self._call_numbers)
        member.calls[run(member.actor, member.number)] = _Call(number, num_units)
        return number, member.number

    def wait(self, seconds: float | None) -> list[tuple[int, worker.Reply | None]]:
        """Waits for calls to end, or workers to start.

        Args:
          seconds: How long to wait at most; `None` until something happens.

        Returns:
          Calls that ended, with the reply; `None` if the worker was lost.

        Raises:
          WorkerLostError: If there is no worker, and none starts.
        """
        if self._closed:
            raise schedule.WorkerLostError("the Ray context has been closed.")
        if not self._members:
            raise schedule.WorkerLostError(
                "all workers were lost, and no other one starts."
            )
        self._check_alone()
        waiting = {ref: m for m in self._members for ref in m.calls}
        waiting |= {m.start: m for m in self._members if m.start is not None}
        if not waiting:
            return []
        deadline = _POLL_SECONDS if seconds is None else seconds
        # The first ends the wait, then whatever else has ended is taken as well.
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=deadline)
        if ready and len(waiting) > 1:
            ready, _ = self._ray.wait(
                list(waiting), num_returns=len(waiting), timeout=0
            )
        ended: list[tuple[int, worker.Reply | None]] = []
        for ref in ready:
            member = waiting[ref]
            if ref is member.start:
                self._started(member)
            elif ref in member.calls:
                ended += self._ended(member, ref)
        return ended

    def _check_alone(self) -> None:
        """Raises `WorkerLostError` if there has been no worker for too long."""
        if self.infos:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = time.monotonic()
            logging.warning("All workers were lost: waiting for another one to start.")
        elif time.monotonic() - self._alone_since > self._start_seconds:
            raise schedule.WorkerLostError(
                "all workers were lost, and no other one started within "
                f"{self._start_seconds:g} s."
            )

    def cancel(self, calls: Sequence[int]) -> None:
        """Keeps calls from starting; those that run go on, and their replies drop."""
        dropped = set(calls)
        for member in self._members:
            for ref, call in member.calls.items():
                if call.number in dropped:
                    self._ray.cancel(ref)

    def _add(self) -> None:
        options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 0, "resources": {}}
        for name, amount in self._resources.items():
            if name in _OWN_OPTIONS:
                options[_OWN_OPTIONS[name]] = amount
            else:
                options["resources"][name] = amount
        # This process sends lost shares elsewhere and starts other workers itself.
        actor_class = self._ray.remote(worker.Worker).options(
            **options,
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": worker_environment()},
        )
        actor = actor_class.remote(
            self.threads_per_worker, self._intra_op_threads, self._max_cached_bytes
        )
        start = actor.describe.remote()
        self._members.append(_Member(next(self._numbers), actor, start))

    def _wait_for_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while len(self.infos) < self.num_workers:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ClusterError(
                    f"{len(self.infos)} of {self.num_workers} workers started within "
                    f"{seconds:g} s: the others wait for resources, or their machines "
                    "are slow to import TensorFlow."
                )
            starting = [m.start for m in self._members if m.start is not None]
            ready, _ = self._ray.wait(starting, timeout=min(left, _POLL_SECONDS))
            for member in list(self._members):
                if member.start in ready:
                    self._started(member, strict=True)

    def _started(self, member: _Member, strict: bool = False) -> None:
        """Takes in a worker whose start has ended, well or not."""
        try:
            info = self._ray.get(member.start)
            member.start = None
            _check_same(info)
        except (self._ray.exceptions.RayError, ClusterError) as error:
            reason = _reason(error)
            if strict:
                raise ClusterError(f"a worker did not start: {reason}") from error
            self._remove(member)
            self._failed_starts += 1
            logging.warning("Worker %d did not start: %s", member.number, reason)
            if self._failed_starts < _MAX_FAILED_STARTS:
                self._add()
            return
        self._failed_starts = 0
        member.info = info
        own = worker.processor()
        if info.processor != own:
            logging.warning(
                "Worker %d on %s has another processor than this one, whose results "
                "differ by rounding.",
                member.number,
                info.host,
            )
        if self._resources.get("GPU") and not any("GPU" in d for d in info.devices):
            logging.warning(
                "Worker %d on %s was given a GPU by Ray, but TensorFlow finds none "
                "there and uses the CPU.",
                member.number,
                info.host,
            )

    def _ended(
        self, member: _Member, ref: Any
    ) -> list[tuple[int, worker.Reply | None]]:
        errors = self._ray.exceptions
        try:
            reply = self._ray.get(ref)
        except errors.TaskCancelledError:
            del member.calls[ref]
            return []
        except errors.ObjectLostError:
            # The worker's machine died after the call had ended.
            return [(member.calls.pop(ref).number, None)]
        except (
            errors.RayActorError,
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
        ) as error:
            return self._lost(member, error)
        except errors.RayTaskError as error:
            del member.calls[ref]
            raise _cause(error) from error
        return [(member.calls.pop(ref).number, reply)]

    def _lost(
        self, member: _Member, error: Exception
    ) -> list[tuple[int, worker.Reply | None]]:
        logging.warning(
            "Worker %d (process %d on %s) was lost (%s): its clients run elsewhere.",
            member.number,
            member.info.pid,
            member.info.host,
            _reason(error),
        )
        lost = [(call.number, None) for call in member.calls.values()]
        member.calls.clear()
        self._remove(member)
        self._add()
        return lost

    def _remove(self, member: _Member) -> None:
        self._members.remove(member)
        self._ray.kill(member.actor)


def _reason(error: Exception) -> str:
    """Returns the first sentence of one of Ray's errors, which are long."""
    text = messages.one_line(_cause(error))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if type(error).__name__ == "ActorDiedError" and lines:
        text = messages.shortened(lines[0], 160)
    return text.rstrip(".")


def _cause(error: Exception) -> Exception:
    """Returns the worker's own error."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error


def _check_same(info: worker.WorkerInfo) -> None:
    """Checks that a worker runs what this process runs.

    Raises:
      ClusterError: If it does not.
    """
    own = worker.versions()
    for field in attrs.fields(worker.Versions):
        here, there = getattr(own, field.name), getattr(info.versions, field.name)
        if here != there:
            raise ClusterError(
                f"{info.host} has {field.name} {there}, this process has {here}: both "
                "must be the same."
            )
