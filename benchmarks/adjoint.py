"""Measures the gradient through J local SGD steps: time and memory against J.

    python benchmarks/adjoint.py
    python benchmarks/adjoint.py --architecture=lstm --steps=1,4,16 --repetitions=3
    python benchmarks/adjoint.py --quick

Compares four methods that process one batch J + 1 times, like clients with E = J + 1
epochs of a single batch:

    fedavg       J + 1 local steps of a FedAvg client: the unit of time
    trajectory   J steps and the backward pass through them, with the weights before
                 every step in memory
    checkpoints  the same with about every sqrt(J)-th weights in memory
    tape         the same, unrolled in one tf.function: gradients of gradients by
                 nested tapes, the straightforward implementation

Each method runs in its own process, and the four methods for one J alternate, so that
a slowdown of the machine affects all of them. Seconds, and CPU seconds summed over
threads, are the minimum of the repetitions, because other programs can only increase
them; the first call, which traces and compiles, is reported separately. On a busy
machine, rely on the CPU seconds: they measure the work, however many cores share it.

Memory is the peak memory of tensors during a call, including the model and the batch,
as counted by TensorFlow's allocator (median of three calls): unlike the process's
resident set, it does not depend on other memory or on when memory is returned. All
measurements are on the CPU.
"""

import json
import os
import pathlib
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
# Read when TensorFlow is imported; silences its C++ logs.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tff_algos import compat  # noqa: F401  # isort: skip

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import app, flags

from benchmarks.comparison import machine, summary, tables
from benchmarks.comparison.workers import Worker
from tasks.models import image, text
from tff_algos.client_works import local_training, passes, unrolled_training
from tff_algos.client_works.unrolled_training import Steps
from tff_algos.models import local_model
from tff_algos.models.local_model import Tensors, Weights

_BUILD_MODEL = {
    "2nn": lambda: image.build_emnist_model("2nn", only_digits=True, seed=0),
    "cnn": lambda: image.build_emnist_model("cnn", only_digits=True, seed=0),
    "lstm": text.build_lstm_model,
    "gru": text.build_gru_model,
}
_MODEL = flags.DEFINE_enum("architecture", "cnn", list(_BUILD_MODEL), "The model.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 20, "Examples.", lower_bound=1)
_STEPS = flags.DEFINE_list("steps", ["1", "2", "4", "8", "16", "32", "64"], "J.")
_REPETITIONS = flags.DEFINE_integer(
    "repetitions", 5, "Timed calls of each method.", lower_bound=1
)
_QUICK = flags.DEFINE_bool("quick", False, "J = 1, 4, 16 and two timed calls.")

# The environment of measuring processes: the CPU only, with the allocator that counts,
# for any build of TensorFlow.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPU_ALLOCATOR_USE_BFC": "1"}

_LEARNING_RATE = 0.02
_NUM_MEMORY_CALLS = 3
_MEGABYTE = 2**20
_DEVICE = "CPU:0"
_FED_AVG, _TAPE = "fedavg", "tape"
_OURS = ("trajectory", "checkpoints")


@attrs.frozen(eq=False)
class Problem:
    """A model, its initial weights, and the batch of a client.

    Attributes:
      model: The model.
      start: Its initial trainable weights.
      batch: `(x, y)`.
    """

    model: tff.learning.models.FunctionalModel
    start: Tensors
    batch: tuple[tf.Tensor, tf.Tensor]

    def dataset(self) -> tf.data.Dataset:
        """Returns one pass over the client's examples: a single batch."""
        return tf.data.Dataset.from_tensors(self.batch)


def make_problem(model: str, batch_size: int) -> Problem:
    """Returns a model of the tasks and a random batch for it."""
    built = _BUILD_MODEL[model]()
    rng = np.random.default_rng(0)
    x_spec, y_spec = built.input_spec
    shapes = [(batch_size, *spec.shape[1:]) for spec in (x_spec, y_spec)]
    if x_spec.dtype.is_integer:
        # Characters; 0 is padding.
        x, y = (rng.integers(1, 90, shape) for shape in shapes)
    else:
        x, y = rng.uniform(size=shapes[0]), rng.integers(0, 10, shapes[1])
    start = tuple(tf.constant(weight) for weight in built.initial_weights[0])
    batch = tf.constant(x, x_spec.dtype), tf.constant(y, y_spec.dtype)
    return Problem(built, start, batch)


def fed_avg(problem: Problem, num_steps: int) -> Callable[[], Tensors]:
    """Returns a function that computes the update of J + 1 local steps."""
    view, optimizer = local_model.create(problem.model), _optimizer()
    dataset = problem.dataset().repeat(num_steps + 1)

    @tf.function
    def update(start):
        state = local_training.initialize_optimizer(optimizer, start)
        weights = Weights(start, ())
        final = local_training.train(view, optimizer, weights, state, dataset)
        return tf.nest.map_structure(tf.subtract, start, final.weights.trainable)

    return lambda: update(problem.start)


def adjoint(
    problem: Problem, num_steps: int, max_trajectory_bytes: int
) -> Callable[[], Tensors]:
    """Returns a function that computes the gradient by our backward pass."""
    view, optimizer = local_model.create(problem.model), _optimizer()
    dataset = problem.dataset()

    @tf.function
    def gradient(start):
        support = passes.read(dataset, num_steps)
        state = local_training.initialize_optimizer(optimizer, start)

        def final_gradient(trainable, metrics):
            weights = Weights(trainable, ())
            first, last = tf.constant(0), support.batches_per_pass
            return unrolled_training.gradient_of_batches(
                view, weights, metrics, support, first, last
            )

        return unrolled_training.gradient_through_training(
            Steps(view, optimizer, state, support, ()),
            support.num_batches,
            start,
            view.initial_metrics(),
            final_gradient,
            max_trajectory_bytes,
        ).gradient

    return lambda: gradient(problem.start)


def nested_tapes(problem: Problem, num_steps: int) -> Callable[[], Tensors]:
    """Returns a function that computes the gradient by gradients of gradients."""

    def loss(weights):
        x, y = problem.batch
        output = problem.model.predict_on_batch((weights, ()), x, training=True)
        return problem.model.loss(output=output, label=y)

    @tf.function
    def gradient(start):
        with tf.GradientTape() as outer:
            outer.watch(start)
            weights = start
            for _ in range(num_steps):
                with tf.GradientTape() as tape:
                    tape.watch(weights)
                    value = loss(weights)
                gradients = tape.gradient(value, weights)
                weights = tuple(
                    w - _LEARNING_RATE * g
                    for w, g in zip(weights, gradients, strict=True)
                )
            value = loss(weights)
        return outer.gradient(value, start)

    return lambda: gradient(problem.start)


def _optimizer() -> tff.learning.optimizers.Optimizer:
    return tff.learning.optimizers.build_sgdm(_LEARNING_RATE)


METHODS: Mapping[str, Callable[[Problem, int], Callable[[], Tensors]]] = {
    _FED_AVG: fed_avg,
    "trajectory": lambda problem, num_steps: adjoint(problem, num_steps, 1 << 62),
    "checkpoints": lambda problem, num_steps: adjoint(problem, num_steps, 0),
    _TAPE: nested_tapes,
}


def seconds_of(function: Callable[[], Tensors]) -> tuple[float, float]:
    """Returns the seconds and the CPU seconds of a call, including all its ops."""
    start, cpu_start = time.perf_counter(), time.process_time()
    function()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - start, time.process_time() - cpu_start


def peak_megabytes(function: Callable[[], Tensors]) -> float:
    """Returns the peak memory of tensors during a call, MB (2**20 bytes)."""
    tf.config.experimental.reset_memory_stats(_DEVICE)
    result = function()  # Held until the end: the gradient counts as well.
    peak = tf.config.experimental.get_memory_info(_DEVICE)["peak"]
    del result
    return peak / _MEGABYTE


def serve(
    connection: Connection, method: str, model: str, batch_size: int, num_steps: int
) -> None:
    """Runs one method in this process on request.

    Sends the result of the first call and its seconds. Then it answers every "time"
    with the seconds and CPU seconds of a call and every "memory" with the peak memory
    of a call in MB; None ends it.
    """
    problem = make_problem(model, batch_size)
    function = METHODS[method](problem, num_steps)
    start = time.perf_counter()
    result = [tensor.numpy() for tensor in function()]
    connection.send((result, time.perf_counter() - start))
    del result
    measure = {"time": seconds_of, "memory": peak_megabytes}
    while (request := connection.recv()) is not None:
        connection.send(measure[request](function))


@attrs.frozen
class Measurement:
    """The measurements of one method for one J.

    Attributes:
      first_seconds: Seconds of the first call: tracing, compiling, and running.
      seconds: Seconds of each later call.
      cpu_seconds: CPU seconds of each later call, summed over threads.
      megabytes: Peak memory of tensors in each call.
    """

    first_seconds: float
    seconds: Sequence[float]
    cpu_seconds: Sequence[float]
    megabytes: Sequence[float]

    @property
    def best_seconds(self) -> float:
        """The minimum, because other programs can only increase it."""
        return min(self.seconds)

    @property
    def best_cpu_seconds(self) -> float:
        """The minimum, like that of the seconds."""
        return min(self.cpu_seconds)

    @property
    def median_megabytes(self) -> float:
        """The median of the calls."""
        return statistics.median(self.megabytes)


@attrs.frozen
class Comparison:
    """The measurements of all methods for one J.

    Attributes:
      num_steps: J.
      measurements: By method; None if its process died.
      differences: The difference of our methods' gradients from the tape's, relative to
        its norm, by method.
    """

    num_steps: int
    measurements: Mapping[str, Measurement | None]
    differences: Mapping[str, float]


def compare(
    model: str, batch_size: int, num_steps: int, repetitions: int
) -> Comparison:
    """Measures all methods for one J, each in its own process, alternating.

    The processes inherit the environment, which should be `ENVIRONMENT`.
    """
    workers = {
        method: Worker(serve, method, model, batch_size, num_steps)
        for method in METHODS
    }
    try:
        first = {method: worker.receive() for method, worker in workers.items()}
        answers = {
            request: [
                {method: worker.ask(request) for method, worker in workers.items()}
                for _ in range(number)
            ]
            for request, number in (
                ("time", repetitions),
                ("memory", _NUM_MEMORY_CALLS),
            )
        }
    finally:
        for worker in workers.values():
            worker.close()
    measurements = {}
    for method in METHODS:
        times, megabytes = (
            [answer[method] for answer in answers[request]]
            for request in ("time", "memory")
        )
        measurements[method] = None
        if first[method] is not None and None not in [*times, *megabytes]:
            seconds, cpu_seconds = zip(*times, strict=True)
            measurements[method] = Measurement(
                first[method][1], seconds, cpu_seconds, megabytes
            )
    gradients = {method: answer[0] for method, answer in first.items() if answer}
    return Comparison(num_steps, measurements, _differences(gradients))


def _differences(gradients: Mapping[str, Sequence[np.ndarray]]) -> dict[str, float]:
    if _TAPE not in gradients:
        return {}
    expected = gradients[_TAPE]
    zeros = [np.zeros_like(part) for part in expected]
    return {
        method: summary.relative_difference(gradients[method], expected, zeros)
        for method in _OURS
        if method in gradients
    }


def make_table(comparisons: Sequence[Comparison]) -> str:
    """Returns the table with a line for each J; "died" marks a dead process."""
    cells = [_cells(comparison) for comparison in comparisons]
    return tables.format_table(list(cells[0]), [list(line.values()) for line in cells])


def _cells(comparison: Comparison) -> dict[str, str]:
    """Returns a line's cells by header."""
    measurements = comparison.measurements

    def number(name: str, method: str) -> str:
        own = measurements[method]
        return "died" if own is None else tables.format_number(getattr(own, name))

    def ratio(name: str, method: str, unit: str) -> str:
        own, other = measurements[method], measurements[unit]
        if own is None or other is None:
            return "died"
        return tables.format_number(getattr(own, name) / getattr(other, name))

    others = [method for method in METHODS if method != _FED_AVG]
    cells = {"J": str(comparison.num_steps)}
    cells |= {f"{m} s": number("best_seconds", m) for m in METHODS}
    cells |= {f"{m} / {_FED_AVG}": ratio("best_seconds", m, _FED_AVG) for m in others}
    cells |= {f"{m} CPU s": number("best_cpu_seconds", m) for m in METHODS}
    cells |= {
        f"{m} / {_FED_AVG}, CPU": ratio("best_cpu_seconds", m, _FED_AVG) for m in others
    }
    cells |= {f"{m} MB": number("median_megabytes", m) for m in METHODS}
    cells |= {f"{m} / {_TAPE}, MB": ratio("median_megabytes", m, _TAPE) for m in _OURS}
    return cells | {f"{m} first s": number("first_seconds", m) for m in METHODS}


def main(argv: Sequence[str]) -> None:
    """Measures for every J, then prints the table."""
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}.")
    steps, repetitions = _STEPS.value, _REPETITIONS.value
    if _QUICK.value:
        steps, repetitions = ["1", "4", "16"], 2
    for number in steps:
        if not number.isdecimal() or int(number) < 1:
            raise app.UsageError(f"--steps={number}: expected whole numbers >= 1.")
    os.environ.update(ENVIRONMENT)
    # An exception, so that the child processes are ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    comparisons = []
    for number in map(int, steps):
        print(f"J = {number}", file=sys.stderr, flush=True)
        comparisons.append(
            compare(_MODEL.value, _BATCH_SIZE.value, number, repetitions)
        )
    print(
        f"{_MODEL.value}, B = {_BATCH_SIZE.value}, {json.dumps(machine.describe())}\n"
    )
    print(make_table(comparisons))
    differences = [d for c in comparisons for d in c.differences.values()]
    if differences:
        print(
            f"\nOurs differ from the tape's gradient by {max(differences):.0e} at most."
        )


if __name__ == "__main__":
    app.run(main)
