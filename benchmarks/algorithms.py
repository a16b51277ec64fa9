"""Measures the cost of a local step of each algorithm, relative to FedAvg's.

    python benchmarks/algorithms.py
    python benchmarks/algorithms.py --algorithms=gradma,moon --models=logistic

A round has 10 clients with 60 random examples of MNIST's shape, in batches of 10, on the
in-process runtime, with each algorithm's default hyperparameters. Rounds of one and of
four epochs differ by 18 steps of every client: their difference gives the time of a step,
and what is left of the short round is done once a round or once per client (aggregation,
the server's step, a pass over all data). Every algorithm has its own process; its rounds
alternate with those of a process of FedAvg, so that a slowdown of the machine affects
both. Ratios are medians (minimum to maximum) over pairs of rounds after the first.
"Needed" is the time of the step's passes if a backward pass takes twice as long as a
forward pass. Memory is the peak of the process, which is mostly TensorFlow's own.

Writes table.md and results.json to --table_dir.
"""

import contextlib
import os
import pathlib
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
# Read when TensorFlow is imported; silences its C++ logs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tff_algos import compat  # noqa: F401  # isort: skip

import attrs
import numpy as np
from absl import app, flags

from benchmarks.comparison import machine, summary, tables
from benchmarks.comparison.workers import Worker
from tasks.models import blocks, classifier, image
from tasks.task import Task
from tff_algos import execution
from tff_algos.clients.client_memory import ClientMemory
from tff_algos.experiments import catalog, cohorts, files, launch, peak_memory
from tff_algos.models.block_model import BlockModel, chain

_ALGORITHMS = flags.DEFINE_list("algorithms", None, "Names; default: all measured.")
_MODELS = flags.DEFINE_list("models", ["cnn", "logistic"], "Of cnn, logistic.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Timed rounds.", lower_bound=1)
_OUTPUT_DIR = flags.DEFINE_string("table_dir", "runs/bench-algorithms", "Results.")

_FED_AVG = "fedavg"
_NUM_CLIENTS = 10
_EXAMPLES_PER_CLIENT = 60
_BATCH_SIZE = 10
# Steps of all clients in an epoch.
_NUM_STEPS = _NUM_CLIENTS * _EXAMPLES_PER_CLIENT // _BATCH_SIZE
_SHORT_EPOCHS, _LONG_EPOCHS = 1, 4
_MEGABYTE = 2**20


@attrs.frozen
class Passes:
    """The passes through the model that an algorithm needs.

    Attributes:
      forward: Number of forward passes per local step; None if it depends on the model.
      backward: Number of backward passes per local step.
      reason: What they are for, and which others are done once per client.
    """

    forward: int | None
    backward: int | None
    reason: str

    @property
    def needed(self) -> float | None:
        """The time of a step over FedAvg's, if a backward pass takes twice as long."""
        if self.forward is None or self.backward is None:
            return None
        return (self.forward + 2 * self.backward) / 3


# The algorithms whose client work is steps of local SGD; without those that differ from
# another one at the server only (momentum, FedMeta, Reptile) or in the data (FedShare).
PASSES: Mapping[str, Passes] = {
    _FED_AVG: Passes(1, 1, "the batch's gradient"),
    "fedprox": Passes(1, 1, "the penalty needs no pass"),
    "mimelite": Passes(1, 1, "once per client: the gradient at the server's weights"),
    "fedmgda_plus": Passes(1, 1, "the server solves for the weights"),
    "fedavg_n": Passes(1, 1, "updates are normalized"),
    "qfedavg": Passes(1, 1, "once per client: the loss before training"),
    "afl": Passes(1, 1, "the steps' own losses are the client's weight"),
    "gradma": Passes(3, 3, "gradients at three weights, quadratic programs"),
    "gradma_w": Passes(3, 3, "gradients at three weights, a quadratic program"),
    "gradma_s": Passes(1, 1, "the server's quadratic program"),
    "moon": Passes(3, 1, "features of two frozen models"),
    "fedmlb": Passes(
        None, None, "also from every block through the server's later ones"
    ),
    "scaffold": Passes(1, 1, "control variates are added"),
    "feddyn": Passes(1, 1, "the penalties need no pass"),
    "mifa": Passes(1, 1, "the server keeps every client's update"),
}


def make_model(name: str) -> BlockModel:
    """Returns the MNIST task's default model, or logistic regression."""
    if name == "cnn":
        return image.build_emnist_model("cnn", only_digits=True, seed=0)
    size = int(np.prod(image.IMAGE_SHAPE))
    dense = blocks.dense(np.random.default_rng(0), size, 10)
    return classifier.build([chain(blocks.FLATTEN, dense)], image.IMAGE_SHAPE)


def make_task(model: str) -> Task:
    """Returns a task of random examples."""

    def examples(client_id: str, split: str):
        del split  # Nothing is evaluated.
        rng = np.random.default_rng(int(client_id))
        shape = (_EXAMPLES_PER_CLIENT, *image.IMAGE_SHAPE)
        x = rng.uniform(size=shape).astype(np.float32)
        return x, rng.integers(10, size=len(x), dtype=np.int32)

    ids = [str(number) for number in range(_NUM_CLIENTS)]
    return Task(
        name="mnist",
        data_source="generated",
        train_client_ids=ids,
        eval_client_ids=ids,
        examples=examples,
        model=make_model(model),
    )


class Training:
    """The rounds of one algorithm."""

    def __init__(self, algorithm: str, task: Task, num_epochs: int):
        recipe = catalog.get(algorithm)
        chosen = {
            "clients_per_round": _NUM_CLIENTS,
            "client_batch_size": _BATCH_SIZE,
            "client_epochs_per_round": num_epochs,
            "client_learning_rate": 0.01,
        }
        settings = launch.resolve(recipe, task, chosen)[-1]
        (self._stage,) = recipe.stages(task, settings)
        self._task = task
        self._state = self._stage.process.initialize()
        self._memory = None
        if "memory" in self._stage.client_data_fields:
            self._memory = ClientMemory.of_process(self._stage.process, _NUM_CLIENTS)

    def run_round(self, number: int) -> float:
        """Runs a round and returns its seconds, without those of making batches."""
        given = (self._stage, self._task, 0, number)
        data = cohorts.cohort_datasets(*given)
        positions = cohorts.positions(self._task)
        clients = [positions[client_id] for client_id in cohorts.cohort_ids(*given)]
        start = time.perf_counter()
        if self._memory is not None:
            data = cohorts.with_memory(data, clients, self._memory)
        output = self._stage.process.next(self._state, data)
        if self._memory is not None:
            self._memory.update(output.metrics["client_work"]["memory"])
        self._state = output.state
        return time.perf_counter() - start


@attrs.frozen
class RoundTimes:
    """Seconds of two rounds that differ in their number of local steps.

    Attributes:
      short: Seconds of the round with one epoch.
      long: Seconds of the round with four epochs.
    """

    short: float
    long: float

    @property
    def step(self) -> float:
        """Seconds of a local step, of any client."""
        added = (_LONG_EPOCHS - _SHORT_EPOCHS) * _NUM_STEPS
        return (self.long - self.short) / added

    @property
    def rest(self) -> float:
        """Seconds of what does not depend on the number of steps, of all clients."""
        return self.short - _SHORT_EPOCHS * _NUM_STEPS * self.step


def serve(connection: Connection, algorithm: str, model: str) -> None:
    """Runs two rounds for each number received; sends their times and the peak, MB."""
    execution.set_in_process_context()
    task = make_task(model)
    trainings = [Training(algorithm, task, n) for n in (_SHORT_EPOCHS, _LONG_EPOCHS)]
    connection.send("ready")
    while True:
        number = connection.recv()
        times = RoundTimes(*(training.run_round(number) for training in trainings))
        connection.send((times, peak_memory.peak_bytes() / _MEGABYTE))


@attrs.frozen
class Measured:
    """The rounds of an algorithm after the first.

    Attributes:
      rounds: Its rounds.
      fed_avg_rounds: FedAvg's adjacent rounds.
      peak_megabytes: Peak memory of the algorithm's process.
    """

    rounds: Sequence[RoundTimes]
    fed_avg_rounds: Sequence[RoundTimes]
    peak_megabytes: float


def measure(
    algorithm: str, model: str, fed_avg: Worker, num_rounds: int
) -> Measured | None:
    """Returns an algorithm's rounds; None if its process or FedAvg's died."""
    pairs = []
    with contextlib.closing(Worker(serve, algorithm, model)) as own:
        if own.receive() is None:
            return None
        for number in range(1, num_rounds + 2):
            order = (own, fed_avg) if number % 2 else (fed_avg, own)
            answers = {worker: worker.ask(number) for worker in order}
            if None in answers.values():
                return None
            pairs.append((answers[own], answers[fed_avg]))
    return Measured(
        rounds=[own_times for (own_times, _), _ in pairs[1:]],
        fed_avg_rounds=[times for _, (times, _) in pairs[1:]],
        peak_megabytes=pairs[-1][0][1],
    )


def compare(
    algorithms: Sequence[str], model: str, num_rounds: int
) -> Mapping[str, Measured | None]:
    """Measures algorithms on a model, by name."""
    with contextlib.closing(Worker(serve, _FED_AVG, model)) as fed_avg:
        fed_avg.receive()
        measured = {}
        for name in algorithms:
            measured[name] = measure(name, model, fed_avg, num_rounds)
            print(f"{model}, {name}: {measured[name]}", file=sys.stderr, flush=True)
    return measured


def make_table(by_model: Mapping[str, Mapping[str, Measured | None]]) -> str:
    """Returns one table with a row for each model and algorithm."""
    header = [
        "model, algorithm",
        "ms/step",
        "of FedAvg's",
        "needed",
        "ms of the rest",
        "of FedAvg's short round",
        "peak MB",
        "passes",
    ]
    rows = []
    for model, measured in by_model.items():
        for name, own in measured.items():
            costs = ["died", *[""] * 4] if own is None else _costs(own)
            needed = PASSES[name].needed
            costs[2:2] = ["" if needed is None else tables.format_number(needed)]
            rows.append([f"{model}, {name}", *costs, PASSES[name].reason])
    return tables.format_table(header, rows)


def _costs(measured: Measured) -> list[str]:
    """Returns the columns of the table without the first, "needed" and "passes"."""
    pairs = list(zip(measured.rounds, measured.fed_avg_rounds, strict=True))
    steps = [own.step / other.step for own, other in pairs]
    rounds = [own.short / other.short for own, other in pairs]

    def milliseconds(seconds: Iterable[float]) -> str:
        return tables.format_number(1e3 * statistics.median(seconds))

    return [
        milliseconds(own.step for own in measured.rounds),
        tables.format_spread(summary.spread(steps)),
        milliseconds(own.rest for own in measured.rounds),
        tables.format_spread(summary.spread(rounds)),
        f"{measured.peak_megabytes:.0f}",
    ]


def main(argv: Sequence[str]) -> None:
    """Measures every algorithm on every model, prints and writes."""
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}.")
    algorithms = _ALGORITHMS.value or list(PASSES)
    for chosen, known in ((algorithms, PASSES), (_MODELS.value, ("cnn", "logistic"))):
        unknown = sorted(set(chosen) - set(known))
        if unknown:
            raise app.UsageError(
                f"Expected names out of {', '.join(known)}, found {', '.join(unknown)}."
            )
    # An exception, so that the child processes are ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    by_model = {m: compare(algorithms, m, _ROUNDS.value) for m in _MODELS.value}
    described = machine.describe()
    table = make_table(by_model)
    text = (
        f"{described['cores']} cores ({machine.processor_line(described)}), "
        f"{_ROUNDS.value} rounds.\n\n{table}\n"
    )
    folder = pathlib.Path(_OUTPUT_DIR.value)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(text, encoding="utf-8")
    files.write_json(
        folder / "results.json",
        {
            "machine": described,
            "passes": {name: attrs.asdict(each) for name, each in PASSES.items()},
            "models": {
                model: {
                    name: None if own is None else attrs.asdict(own)
                    for name, own in measured.items()
                }
                for model, measured in by_model.items()
            },
        },
    )
    print(f"{text}\nWritten to {folder}.")


if __name__ == "__main__":
    app.run(main)
