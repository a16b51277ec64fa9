"""What ran where: the plan of a computation and the times of its last call, as text."""

from collections.abc import Sequence

import attrs

from tff_algos.execution.communication import Communication


@attrs.frozen
class StageReport:
    """A server stage in one call.

    Attributes:
      leaves: The names of its leaves.
      device: Where it ran.
      seconds: How long it took, including tracing in the first call.
    """

    leaves: Sequence[str]
    device: str
    seconds: float

    def __str__(self) -> str:
        return (
            f"server: {_count(len(self.leaves), 'leaf', 'leaves')} on {self.device}, "
            f"{_duration(self.seconds)}"
        )


@attrs.frozen
class PassReport:
    """A pass over the clients in one call.

    Attributes:
      num_clients: The number of clients.
      num_aggregates: The number of aggregates of their values.
      leaves: The names of the leaves of the clients' work.
      devices: Where clients ran.
      one_by_one: Why clients ran one by one; empty if they were vectorized.
      client_bytes: Memory of a client's state or values, whichever is larger; of its
        values alone if its work was not split at its reductions.
      chunk_size: The number of clients per chunk; 0 if they ran one by one.
      seconds: How long it took, including tracing in the first call.
      workers: The other processes where clients ran, and what was sent; may be empty.
      advice: What may make the pass faster; may be empty.
      communication: What server and clients sent each other.
      reading_seconds: How long vectorized clients waited for their data, added up over
        threads and processes.
    """

    num_clients: int
    num_aggregates: int
    leaves: Sequence[str]
    devices: Sequence[str]
    one_by_one: str
    client_bytes: int
    chunk_size: int
    seconds: float
    workers: str = ""
    advice: str = ""
    communication: Communication = attrs.field(factory=Communication)
    reading_seconds: float = 0.0

    def __str__(self) -> str:
        work = _count(len(self.leaves), "leaf", "leaves")
        total = _count(self.num_aggregates, "aggregate", "aggregates")
        clients = _count(self.num_clients, "client", "clients")
        where = f"{', '.join(self.devices)}, {_duration(self.seconds)}"
        lines = [f"clients: {clients}, {work} and {total} on {where}"]
        if self.one_by_one:
            lines.append(f"one by one: {self.one_by_one}")
        else:
            chunks = -(-self.num_clients // self.chunk_size)
            lines.append(
                f"vectorized: {_count(chunks, 'chunk', 'chunks')} of up to "
                f"{_count(self.chunk_size, 'client', 'clients')}"
            )
            if self.reading_seconds:
                where = " in all threads" if chunks > 1 else ""
                if self.workers:
                    where = " in all processes"
                lines.append(
                    f"reading their data: {_duration(self.reading_seconds)}{where}"
                )
        lines += filter(None, (self.workers, self.advice))
        lines.append(f"memory of a client: {size(self.client_bytes)}")
        if self.num_clients:
            down, up = (
                size(total / self.num_clients)
                for total in attrs.astuple(self.communication)
            )
            lines.append(f"sent per client: {down} down, {up} up")
        return "\n    ".join(lines)


def describe(
    steps: Sequence[StageReport | PassReport], seconds: float, calls: int
) -> str:
    """Returns the description of a computation's last call.

    Args:
      steps: Its steps in order.
      seconds: How long the call took.
      calls: How often the computation was called.

    Returns:
      One paragraph per step.
    """
    rest = max(0.0, seconds - sum(step.seconds for step in steps))
    traced = ", with the tracing of its functions" if calls == 1 else ""
    return "\n".join(
        [
            f"call {calls}: {_duration(seconds)}{traced}",
            *[f"{number}. {step}" for number, step in enumerate(steps, start=1)],
            f"argument and result: {_duration(rest)}",
        ]
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def size(num_bytes: float) -> str:
    """Returns a number of bytes with its unit."""
    for unit in ("bytes", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"
