"""CPU time of this process and its descendants; only the standard library."""

import os
import pathlib
import time
from collections.abc import Iterator

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def parse_stat(line: str) -> tuple[int, int]:
    """Returns the parent's id and the CPU time, in ticks, from a /proc/<id>/stat.

    The time includes that of children that have ended.
    """
    # The name, in parentheses, may contain spaces and parentheses itself.
    fields = line.rpartition(")")[2].split()
    return int(fields[1]), sum(int(field) for field in fields[11:15])


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # It has ended.
            continue
        yield int(folder.name), parse_stat(line)


def descendants_ticks(root: int, stats: dict[int, tuple[int, int]]) -> int:
    """Returns the ticks of all descendants of a process, without its own.

    Args:
      root: The id of the process.
      stats: By id: the parent's id and the ticks.
    """
    family, grown = {root}, True
    while grown:
        children = {pid for pid, (parent, _) in stats.items() if parent in family}
        grown = not children <= family
        family |= children
    return sum(stats[pid][1] for pid in family - {root})


class CpuClock:
    """Tells the CPU time of this process and its descendants, without its own work."""

    def __init__(self):
        self._reading = 0.0

    def seconds(self) -> float:
        """Returns user and system time so far."""
        own = time.process_time()
        ended = os.times()
        alive = descendants_ticks(os.getpid(), dict(_processes()))
        total = own + ended.children_user + ended.children_system - self._reading
        # Reading /proc takes milliseconds, as long as the shortest rounds.
        self._reading += time.process_time() - own
        return total + alive / _TICKS_PER_SECOND
