"""Measures the cost of aggregators: time and memory of a round against FedAvg's mean.

    python benchmarks/aggregation.py
    python benchmarks/aggregation.py --cohorts=10 --timed_rounds=9

A round is one local epoch of the EMNIST CNN with 1,206,590 weights on 200 random
examples per client (EMNIST's writers have 198 on average), in batches of 20, on the
in-process runtime. Every aggregator runs in its own process, where its rounds are
paired with FedAvg's, in alternating order. Its additional time is the median (minimum
to maximum) over pairs, in seconds and as the median's share of FedAvg's whole round. It
is measured for rounds of one example per client, where aggregation dominates, and for
whole rounds, whose times vary by more than that. Memory is the increase of the
process's peak over its memory before the first whole round, after compiling and
loading. FedAvg's is of that round alone, because later rounds reuse the memory of the
other method's rows.

    mean                     FedAvg: the unit
    min norm                 FedMGDA+: gathered updates, their Gram matrix, the solver
    min norm, in 8 blocks    the same, an eighth of the columns at a time
    ... from a file          the same, with clients' updates in a file between the turns
    normalized mean          FedAvg-n, normalized by the clients
    q-fair                   q-FedAvg's sums; includes the loss before training
"""

import contextlib
import json
import os
import pathlib
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Self

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
# Read when TensorFlow is imported; silences its C++ logs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tff_algos import compat  # noqa: F401  # isort: skip

import attrs
import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff
from absl import app, flags

import tff_algos
from benchmarks.comparison import machine, summary, tables
from benchmarks.comparison.workers import Worker
from tasks.models import image
from tff_algos import aggregators, execution

_COHORTS = flags.DEFINE_list("cohorts", ["10", "100"], "Clients per round.")
_ROUNDS = flags.DEFINE_integer("timed_rounds", 5, "Timed rounds.", lower_bound=1)
_EXAMPLES = flags.DEFINE_integer(
    "examples_per_client", 200, "Examples per client.", lower_bound=1
)

_UNIFORM = tff.learning.ClientWeighting.UNIFORM
_BATCH_SIZE = 20
_DIED = ["died"] * 7
_MEGABYTE = 2**20
_MEAN = "mean"


@attrs.frozen
class Method:
    """An aggregator in FedAvg.

    Attributes:
      build: Maps the model and the client optimizer to the process.
      max_kept_bytes: The runtime's option; None for its default.
    """

    build: Callable[..., tff.learning.templates.LearningProcess]
    max_kept_bytes: int | None = None


def _fed_avg(make_aggregator) -> Callable[..., tff.learning.templates.LearningProcess]:
    def build(model, optimizer):
        return tff_algos.build_fed_avg(
            model,
            optimizer,
            client_weighting=_UNIFORM,
            model_aggregator=make_aggregator(),
        )

    return build


def _in_blocks() -> aggregators.MinNormFactory:
    return aggregators.MinNormFactory(normalize=True, num_blocks=8)


METHODS: Mapping[str, Method] = {
    _MEAN: Method(_fed_avg(lambda: None)),
    "min norm": Method(_fed_avg(lambda: aggregators.MinNormFactory(normalize=True))),
    "min norm, in 8 blocks": Method(_fed_avg(_in_blocks)),
    "min norm, in 8 blocks from a file": Method(_fed_avg(_in_blocks), 0),
    "normalized mean": Method(_fed_avg(aggregators.NormalizedMeanFactory)),
    "q-fair": Method(
        lambda model, optimizer: tff_algos.build_q_fed_avg(
            model, optimizer, q=0.5, lipschitz=20.0
        )
    ),
}


def client_data(number: int, num_examples: int) -> tf.data.Dataset:
    """Returns the batches of a random client."""
    rng = np.random.default_rng(number)
    x = rng.uniform(size=(num_examples, *image.IMAGE_SHAPE)).astype(np.float32)
    y = rng.integers(0, 62, num_examples).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(_BATCH_SIZE)


@attrs.frozen
class Round:
    """The cost of a round.

    Attributes:
      seconds: Wall time.
      cpu_seconds: CPU time, summed over cores.
      megabytes: Increase of the process's peak memory.
    """

    seconds: float
    cpu_seconds: float
    megabytes: float


# A round of the mean and an adjacent round of another method.
Pairs = Sequence[tuple[Round, Round]]


@attrs.frozen
class Measured:
    """The rounds of a method.

    Attributes:
      whole: Rounds with all examples.
      short: Rounds with one example per client.
    """

    whole: Pairs
    short: Pairs


class _PeakMemory:
    """Measures this process's peak memory while the body runs, in bytes."""

    def __enter__(self) -> Self:
        self.peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        process = psutil.Process()
        while not self._done.wait(0.01):
            self.peak = max(self.peak, process.memory_info().rss)

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


def serve(
    connection: Connection,
    name: str,
    num_clients: int,
    num_examples: int,
    num_rounds: int,
) -> None:
    """Sends `Measured` of a method, which alternates with the mean in this process."""
    options = {}
    if METHODS[name].max_kept_bytes is not None:
        options["max_kept_bytes"] = METHODS[name].max_kept_bytes
    execution.set_in_process_context(**options)
    model = image.build_emnist_model("cnn_dropout", only_digits=False, seed=0)
    whole, short = (
        [client_data(number, size) for number in range(num_clients)]
        for size in (num_examples, 1)
    )
    processes = [
        METHODS[each].build(model, tff.learning.optimizers.build_sgdm(0.05))
        for each in (_MEAN, name)
    ]
    # A round of four clients compiles everything for a round of all clients.
    states = [each.next(each.initialize(), whole[:4]).state for each in processes]
    held = psutil.Process().memory_info().rss

    def measure(place: int, data: Sequence[tf.data.Dataset]) -> Round:
        start, cpu_start = time.perf_counter(), time.process_time()
        with _PeakMemory() as memory:
            states[place] = processes[place].next(states[place], data).state
        seconds = time.perf_counter() - start
        cpu_seconds = time.process_time() - cpu_start
        return Round(seconds, cpu_seconds, (memory.peak - held) / _MEGABYTE)

    def pair(number: int, data: Sequence[tf.data.Dataset]) -> tuple[Round, Round]:
        if number % 2:
            own, mean = measure(1, data), measure(0, data)
        else:
            mean, own = measure(0, data), measure(1, data)
        return mean, own

    def pairs(data: Sequence[tf.data.Dataset]) -> Pairs:
        return [pair(number, data) for number in range(num_rounds)]

    connection.send(Measured(pairs(whole), pairs(short)))


def compare(
    num_clients: int, num_examples: int, num_rounds: int
) -> Mapping[str, Measured | None]:
    """Measures every method except the mean; None if its process died."""
    measured = {}
    for name in METHODS:
        if name != _MEAN:
            arguments = name, num_clients, num_examples, num_rounds
            with contextlib.closing(Worker(serve, *arguments)) as worker:
                measured[name] = worker.receive()
    return measured


def make_table(num_clients: int, measured: Mapping[str, Measured | None]) -> str:
    """Returns the table of one cohort size, with a line for each aggregator."""
    finished = [own.whole for own in measured.values() if own]
    units = [mean for pairs in finished for mean, _ in pairs]
    firsts = [pairs[0][0] for pairs in finished]
    rows = [[_MEAN, *(_medians(units, firsts, *[""] * 4) if units else _DIED)]]
    for name, own in measured.items():
        rows.append([name, *(_compare_with_mean(own) if own else _DIED)])
    header = [
        f"{num_clients} clients",
        "s per round",
        "CPU s per round",
        "aggregation, s more",
        "of a round, %",
        "whole round, s more",
        "of a round, %",
        "peak MB more",
    ]
    return tables.format_table(header, rows)


def _compare_with_mean(measured: Measured) -> list[str]:
    unit = statistics.median(mean.seconds for mean, _ in measured.whole)
    rounds = [own for _, own in measured.whole]
    return _medians(
        rounds,
        rounds,
        *_more(measured.short, unit),
        *_more(measured.whole, unit),
    )


def _more(pairs: Pairs, unit: float) -> tuple[str, str]:
    more = summary.spread([own.seconds - mean.seconds for mean, own in pairs])
    seconds = f"{more.median:.2f} ({more.low:.2f} to {more.high:.2f})"
    return seconds, f"{100 * more.median / unit:.1f}"


def _medians(
    rounds: Sequence[Round], rounds_of_memory: Sequence[Round], *more: str
) -> list[str]:
    columns = (
        [each.seconds for each in rounds],
        [each.cpu_seconds for each in rounds],
        [each.megabytes for each in rounds_of_memory],
    )
    seconds, cpu_seconds, megabytes = (
        tables.format_number(statistics.median(column)) for column in columns
    )
    return [seconds, cpu_seconds, *more, megabytes]


def main(argv: Sequence[str]) -> None:
    """Measures every cohort size and prints the tables."""
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}.")
    for number in _COHORTS.value:
        if not number.isdecimal() or int(number) < 4:
            raise app.UsageError(f"--cohorts={number}: expected whole numbers >= 4.")
    # An exception, so that the child processes are ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(json.dumps(machine.describe()))
    for number in map(int, _COHORTS.value):
        measured = compare(number, _EXAMPLES.value, _ROUNDS.value)
        print(f"\n{make_table(number, measured)}", flush=True)


if __name__ == "__main__":
    app.run(main)
