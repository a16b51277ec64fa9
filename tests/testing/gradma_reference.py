"""GradMA in plain NumPy and SciPy, as a reference."""

from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np
import scipy.optimize


@attrs.define
class MemoryReduction:
    """At most `size` clients own a row.

    Attributes:
      size: m.
      counts: In how many rounds each owner has taken part, in the order of insertion.
    """

    size: int
    counts: dict[int, int] = attrs.field(factory=dict)

    def take(self, cohort: Sequence[int]) -> set[int]:
        """Gives rows to the clients of a round; returns those who have a new one."""
        new = set()
        for client in cohort:
            if client in self.counts:
                self.counts[client] += 1
            elif self._make_room(cohort):
                self.counts[client] = 1
                new.add(client)
        return new

    def _make_room(self, cohort: Iterable[int]) -> bool:
        if len(self.counts) < self.size:
            return True
        candidates = [owner for owner in self.counts if owner not in cohort]
        if not candidates:
            return False
        # The first of the smallest: insertion breaks ties.
        del self.counts[min(candidates, key=self.counts.get)]
        return True


def project(
    target: np.ndarray,
    rows: Sequence[np.ndarray],
    parts: Sequence[slice] = (slice(None),),
) -> np.ndarray:
    """The vector nearest to a given one that opposes no row, part by part."""
    rows = np.reshape(rows, (-1, len(target)))
    found = np.array(target, np.float64)
    for part in parts:
        own = rows[:, part]
        multipliers, _ = scipy.optimize.nnls(own.T, -found[part], maxiter=1000)
        found[part] += multipliers @ own
    return found


class Server:
    """GradMA-S's server between rounds.

    Attributes:
      rows: What is remembered by client, as the next round will read it.
      corrected: The momentum after its correction.
      w: The weights.
    """

    def __init__(
        self,
        num_rows: int,
        start: np.ndarray,
        *,
        momentum: float = 0.5,
        memory_decay: float = 0.5,
        parts: Sequence[slice] = (slice(None),),
    ) -> None:
        self._owners, self._parts = MemoryReduction(num_rows), parts
        self._momentum, self._memory_decay = momentum, memory_decay
        self.rows: dict[int, np.ndarray] = {}
        self.w = np.array(start, np.float64)
        self.corrected = np.zeros_like(self.w)

    def round(
        self, updates: Mapping[int, np.ndarray], weights: Sequence[float] | None = None
    ) -> np.ndarray:
        """Takes a round's updates by client; returns the momentum as it was."""
        new = self._owners.take(list(updates))
        for client in self._owners.counts.keys() & updates.keys():
            old = 0.0 if client in new else self.rows[client]
            self.rows[client] = old + updates[client]
        self.rows = {k: self.rows[k] for k in self._owners.counts}
        mean = np.average(list(updates.values()), axis=0, weights=weights)
        momentum = self._momentum * self.corrected + mean
        self.corrected = project(momentum, list(self.rows.values()), self._parts)
        self.w = self.w - self.corrected
        self.rows = {k: self._memory_decay * row for k, row in self.rows.items()}
        return momentum
