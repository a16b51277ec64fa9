"""A round on N workers, simulated with measured costs and the runtime's own scheduler.

Time passes on a clock of numbers. The driver and each direction of its network link do
one thing at a time; workers compute in parallel.
"""

import heapq
import math
from collections.abc import Sequence

import attrs

from tff_algos.execution.distributed import schedule


@attrs.frozen(kw_only=True)
class Costs:
    """What a round consists of, measured on a real one.

    Attributes:
      worker_seconds: A worker's time for a client.
      driver_seconds: The driver's time for a client's values: receiving and adding.
      round_seconds: The driver's time for a round without clients.
      call_seconds: The driver's time to send a share.
      client_bytes: Sent to a worker for a client.
      server_bytes: Sent to each worker once.
      reply_bytes: A client's values; those of several clients' sum.
      link_bytes: Per second, of every machine's network link in each direction.
    """

    worker_seconds: float
    driver_seconds: float
    round_seconds: float
    call_seconds: float
    client_bytes: float
    server_bytes: float
    reply_bytes: float
    link_bytes: float


class _Workers:
    """Simulated calls, as `schedule.Calls` wants them.

    Attributes:
      clock: The time since the round began.
    """

    threads_per_worker = 1

    def __init__(self, costs: Costs, num_workers: int, clients_per_sum: int):
        self.num_workers = num_workers
        self.clock = costs.round_seconds
        self._costs = costs
        self._clients_per_sum = clients_per_sum
        # When each worker has computed what it has.
        self._free_at = [0.0] * num_workers
        # The number of units of each of a worker's calls.
        self._queues: list[list[int]] = [[] for _ in range(num_workers)]
        self._has_server = [False] * num_workers
        self._link_out, self._link_in = 0.0, 0.0
        # Shares that have not arrived, by the time at which they are computed.
        self._computed: list[tuple[float, int, int, range]] = []
        self._num_calls = 0

    def has_room(self) -> bool:
        return schedule.least_busy(self._queues) is not None

    def submit(self, share: range) -> int:
        costs = self._costs
        self.clock += costs.call_seconds
        worker = schedule.least_busy(self._queues)
        num_clients = len(share) * self._clients_per_sum
        sent = num_clients * costs.client_bytes
        if not self._has_server[worker]:
            self._has_server[worker] = True
            sent += costs.server_bytes
        start = max(self.clock, self._link_out)
        self._link_out = start + sent / costs.link_bytes
        start = max(self._link_out, self._free_at[worker])
        self._free_at[worker] = start + num_clients * costs.worker_seconds
        self._queues[worker].append(len(share))
        call, self._num_calls = self._num_calls, self._num_calls + 1
        heapq.heappush(self._computed, (self._free_at[worker], call, worker, share))
        return call

    def wait(self, seconds: float | None) -> list[tuple[int, Sequence[int]]]:
        ended = []
        while self._computed:
            computed, call, worker, share = self._computed[0]
            arrival = max(computed, self._link_in)
            arrival += len(share) * self._costs.reply_bytes / self._costs.link_bytes
            if arrival > self.clock and (ended or seconds is not None):
                break
            heapq.heappop(self._computed)
            self._link_in = arrival
            self.clock = max(self.clock, arrival)
            self._queues[worker].remove(len(share))
            ended.append((call, list(share)))
        return ended

    def abandon(self, calls: Sequence[int]) -> None:
        del calls


def round_seconds(
    costs: Costs, num_clients: int, num_workers: int, clients_per_sum: int = 1
) -> float:
    """Returns the time of a round whose values the driver adds.

    Args:
      costs: What was measured.
      num_clients: The number of clients, a multiple of `clients_per_sum`.
      num_workers: The number of workers.
      clients_per_sum: As in `set_ray_context`.
    """
    workers = _Workers(costs, num_workers, clients_per_sum)
    for _ in schedule.replies_in_order(workers, num_clients // clients_per_sum):
        workers.clock += costs.driver_seconds
    return workers.clock


def tree_seconds(costs: Costs, num_clients: int, num_workers: int) -> float:
    """Returns the time of a round whose values workers add in a binary tree.

    The runtime does not do this. Every worker adds its own clients' values; then, level
    by level, half of the workers send their sums to the others. The server's values
    spread over the workers in the same way.
    """
    levels = math.ceil(math.log2(num_workers)) + 1
    one_way = costs.server_bytes / costs.link_bytes
    back = costs.reply_bytes / costs.link_bytes + costs.driver_seconds
    own = math.ceil(num_clients / num_workers) * costs.worker_seconds
    return costs.round_seconds + levels * (one_way + back) + own
