"""What a GPU check checks and measures: rows of its report."""

import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence

from tff_algos import compat  # noqa: F401  # isort: skip

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tasks
import tff_algos
from benchmarks.comparison import engines, summary
from benchmarks.comparison.gpu_report import Row
from benchmarks.engines import recorder, run_bare_tf, tf_models, workloads
from tasks.task import DataOptions
from tff_algos import execution, experiments, messages

# An algorithm for each way of training, aggregating and remembering.
FAMILIES = (
    "fedavg",
    "mimelite",
    "qfedavg",
    "fedmgda_plus",
    "uga",
    "moon",
    "scaffold",
    "mifa",
)
# TensorFloat-32 rounds to 11 bits; two rounds of training multiply that.
_TOLERANCES = {"without TF32": 1e-4, "with TF32": 1e-1}

LIMIT_MEGABYTES = 512  # Of a logical GPU.
_ROW_COPIES = 4  # Gathered rows, parts of them on their way, and room for the model.


@attrs.frozen
class Devices:
    """Names of devices: the one under test, its two halves, and the reference."""

    tested: str
    logical: tuple[str, str]
    reference: str = "CPU:0"


OF_KIND = {
    "gpu": Devices("GPU:0", ("GPU:0", "GPU:1")),
    "cpu_logical": Devices("CPU:1", ("CPU:0", "CPU:1")),
}


def device_rows() -> list[Row]:
    """Returns this machine's devices and TensorFlow's version."""
    rows = [Row("TensorFlow", tf.__version__)]
    for device in tf.config.list_physical_devices():
        details = tf.config.experimental.get_device_details(device)
        rows.append(Row(device.name, str(details or device.device_type)))
    return rows


def equality_rows(name: str, devices: Devices, folder: pathlib.Path) -> list[Row]:
    """Compares two rounds of an algorithm on the tested and the reference device.

    The model has no convolutions: cuDNN chooses their algorithms by measuring, and some
    of those are as inexact as TensorFloat-32. The workloads have convolutions.

    Args:
      name: The algorithm, one of `FAMILIES`.
      devices: The devices.
      folder: Where the runs write.
    """
    entry = tasks.get("mnist")
    task = entry.load(entry.options(model="2nn"), DataOptions(data="generated"))

    def train(device: str, label: str, tf32: bool) -> experiments.RunResult:
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        return experiments.run(
            name,
            task,
            output_dir=folder / label.replace(" ", "-"),
            runtime_devices=[device],
            total_rounds=2,
            clients_per_round=4,
            eval_clients=1,
        )

    reference = train(devices.reference, "reference", tf32=False)
    initial = reference.spec.task.model.initial_weights[0]
    rows = []
    for label, tolerance in _TOLERANCES.items():
        found = train(devices.tested, label, tf32=label == "with TF32")
        rows.append(
            _compared(
                f"{name}, {label}",
                found.weights.trainable,
                reference.weights.trainable,
                initial,
                tolerance,
            )
        )
    return rows


def _compared(
    check: str,
    weights: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    initial: Sequence[np.ndarray],
    tolerance: float,
) -> Row:
    """Compares how far two trainings moved the weights."""
    difference = summary.relative_difference(weights, reference, initial)
    return Row(
        check,
        f"relative difference {difference:.0e} (limit {tolerance:.0e})",
        bool(difference <= tolerance),
    )


def workload_rows(
    workload: workloads.Workload, devices: Devices, seconds: float
) -> list[Row]:
    """Measures a workload in process on both devices, and by hand on the tested one."""
    inputs = workloads.generate(workload, seed=0)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    runs = {
        f"in process, {devices.tested}": (_train_in_process, devices.tested),
        f"in process, {devices.reference}": (_train_in_process, devices.reference),
        f"by hand, {devices.tested}": (_train_by_hand, devices.tested),
    }
    measured, weights = {}, {}
    for label, (train, device) in runs.items():
        measured[label], weights[label] = _measure(train, inputs, device, seconds)
    own, *others = runs
    median = {label: statistics.median(times[1:]) for label, times in measured.items()}
    rows = [
        Row(
            label,
            f"{median[label]:.3g} s/round, {median[label] / median[own]:.2f} times ours; "
            f"first {times[0]:.2g} s, longest later one {max(times[1:]):.2g} s",
        )
        for label, times in measured.items()
    ]
    tolerance = engines.tolerance(workload)
    rows += [
        _compared(
            f"weights as {label}",
            weights[own],
            weights[label],
            inputs.weights,
            tolerance,
        )
        for label in others
    ]
    return rows


_Train = Callable[[workloads.Inputs, recorder.Recorder, str], None]


def _measure(
    train: _Train, inputs: workloads.Inputs, device: str, seconds: float
) -> tuple[list[float], list[np.ndarray]]:
    """Returns the seconds of each round, and the weights after two rounds."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/weights.npz"
        record = recorder.Recorder(
            seconds=seconds,
            max_rounds=30,
            weights_path=path,
            process_start=time.monotonic(),
        )
        train(inputs, record, device)
        with np.load(path) as file:
            weights = [file[f"arr_{n}"] for n in range(len(file.files))]
    return record.round_seconds, weights


def _train_by_hand(inputs, record, device: str) -> None:
    with tf.device(device):
        run_bare_tf.run(inputs, record, None)


def _train_in_process(inputs, record, device: str) -> None:
    clients = _datasets(inputs)
    with execution.in_process_context(runtime_devices=[device]):
        record.start()
        process = tff.learning.algorithms.build_weighted_fed_avg(
            tf_models.functional_model(inputs),
            tff.learning.optimizers.build_sgdm(inputs.workload.learning_rate),
            tff.learning.optimizers.build_sgdm(1.0),
        )
        state = process.initialize()
        another = True
        while another:
            state = process.next(state, clients).state
            trained = process.get_model_weights(state).trainable
            another = record.finish_round(
                lambda trained=trained: [np.asarray(w) for w in trained]
            )


def _datasets(inputs: workloads.Inputs) -> list[tf.data.Dataset]:
    batch_size = inputs.workload.batch_size
    with tf.device("CPU:0"):  # Or TensorFlow would copy all data to the GPU.
        return [
            tf.data.Dataset.from_tensor_slices(client).batch(batch_size)
            for client in zip(inputs.x, inputs.y, strict=True)
        ]


def memory_rows(device: str, cohorts: Sequence[int]) -> list[Row]:
    """Measures peak memory of rounds; the last two cohorts must take the same."""
    peaks, rows = [], []
    for num_clients in cohorts:
        inputs = workloads.generate(
            workloads.Workload("memory", "cnn", num_clients, 20, 20, 0.005), seed=0
        )
        try:
            tf.config.experimental.reset_memory_stats(device)
            _measure(_train_in_process, inputs, device, seconds=0)
            peak = tf.config.experimental.get_memory_info(device)["peak"] / 2**20
        except ValueError as error:  # TensorFlow does not know the CPU's memory.
            return [Row("peak memory", messages.one_line(error))]
        peaks.append(peak)
        rows.append(Row(f"{num_clients} clients", f"peak {peak:.0f} MB"))
    growth = peaks[-1] / peaks[-2]
    return [*rows, Row("flat", f"{growth:.2f} times (limit 1.2)", growth <= 1.2)]


def logical_rows(devices: Devices, workload: workloads.Workload) -> list[Row]:
    """Compares a round on two logical devices with one on the first."""
    inputs = workloads.generate(workload, seed=0)

    def weights(names: Sequence[str]) -> list[np.ndarray]:
        with execution.in_process_context(runtime_devices=names):
            process = tff_algos.build_fed_avg(
                tf_models.functional_model(inputs),
                tff.learning.optimizers.build_sgdm(workload.learning_rate),
            )
            state = process.next(process.initialize(), _datasets(inputs)).state
            return [np.asarray(w) for w in process.get_model_weights(state).trainable]

    one, two = weights(devices.logical[:1]), weights(devices.logical)
    return [_compared(" and ".join(devices.logical), two, one, inputs.weights, 1e-4)]


def clients_to_try(memory_bytes: int, row_bytes: int) -> int:
    """Returns how many clients' gathered updates should fit into memory."""
    return max(1, memory_bytes // (_ROW_COPIES * row_bytes))


def exhausted_rows(device: str, memory_bytes: int) -> list[Row]:
    """Gathers more updates than fit into memory, then as many as should."""
    row_bytes = 4 * workloads.Workload("rows", "cnn", 1, 1, 1).num_weights
    too_many = 2 * memory_bytes // row_bytes
    fitting = clients_to_try(memory_bytes, row_bytes)
    rows = []
    for num_clients, fits in ((too_many, False), (fitting, True)):
        error = _error_of_gathering(num_clients, device)
        if fits:
            found = error or "runs"
        else:
            found = f"{error}; try {fitting} clients" if error else "runs"
        rows.append(Row(f"{num_clients} clients", found, fits == (error is None)))
    return rows


def _error_of_gathering(num_clients: int, device: str) -> str | None:
    workload = workloads.Workload("rows", "cnn", num_clients, 1, 1, 0.005)
    inputs = workloads.generate(workload, seed=0)
    try:
        with execution.in_process_context(runtime_devices=[device]):
            process = tff_algos.build_fed_mgda(
                tf_models.functional_model(inputs),
                tff.learning.optimizers.build_sgdm(workload.learning_rate),
            )
            process.next(process.initialize(), _datasets(inputs))
    except (tf.errors.ResourceExhaustedError, execution.ClientError) as error:
        return messages.one_line(error)
    return None
