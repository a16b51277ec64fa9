"""Checks this project on a GPU with one command, in under 8 minutes.

    make gpu-check GPU=1
    python benchmarks/gpu_check.py --report_dir=runs/gpu-check
    python benchmarks/gpu_check.py --devices=cpu_logical --brief  # Its own logic.

Sections, each in its own process, the checks side by side:

    devices          devices and versions
    equality:fedavg  an algorithm on the GPU and on the CPU, without and with
                     TensorFloat-32; one section for each family of algorithms
    logical          two logical devices against one
    memory           peak GPU memory by number of clients
    exhausted        a cohort too large for the GPU's memory, and one that fits
    W1, ...          the workloads of `make bench-runtimes`: seconds per round in process
                     on the GPU, in process on the CPU and by hand in TensorFlow on the
                     GPU

Writes report.md, results.json and logs/ to --report_dir, and exits with 1 if a check
failed or could not run.
"""

import collections
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent import futures

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The checks share the GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

from tff_algos import compat  # noqa: F401  # isort: skip

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import app, flags

import tasks
import tff_algos
from benchmarks.comparison import engines, gpu_report, processes, summary
from benchmarks.comparison.gpu_report import Row
from benchmarks.engines import recorder, run_bare_tf, tf_models, workloads
from tasks.task import DataOptions
from tff_algos import cpus, execution, experiments, messages

_OUTPUT_DIR = flags.DEFINE_string("report_dir", "runs/gpu-check", "The report.")
_DEVICES = flags.DEFINE_enum(
    "devices",
    "gpu",
    ["gpu", "cpu_logical"],
    "What to check: the first GPU, or the second of two logical CPUs.",
)
_SECTIONS = flags.DEFINE_list("sections", None, "Names of sections; default: all.")
_BRIEF = flags.DEFINE_bool("brief", False, "Small sizes and one algorithm.")
_MINUTES = flags.DEFINE_float("minutes", 7.5, "Time for all sections.", lower_bound=0)
# For the processes of sections.
_SECTION = flags.DEFINE_string("section", None, "Runs this section in this process.")
_RESULT = flags.DEFINE_string("result", None, "JSON file of --section.")
flags.DEFINE_float("process_start", 0.0, "Ignored.")

_ROOT = pathlib.Path(__file__).parents[1]
_SECTION_SECONDS = 240.0

# An algorithm for each way of training, aggregating and remembering, with settings.
FAMILIES = {
    "fedavg": {},
    "mimelite": {},
    "qfedavg": {},
    "fedmgda_plus": {},
    "uga": {},
    "moon": {},
    "scaffold": {},
    "mifa": {},
}
# TensorFloat-32 rounds to 11 bits; two rounds of training multiply that.
_TOLERANCES = {"without TF32": 1e-4, "with TF32": 1e-1}

_LIMIT_MEGABYTES = 512  # Of a logical GPU.
_ROW_COPIES = 4  # Gathered rows, parts of them on their way, and room for the model.


@attrs.frozen
class Devices:
    """Names of devices: the one under test, its two halves, and the reference."""

    tested: str
    logical: tuple[str, str]
    reference: str = "CPU:0"


_OF_KIND = {
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
            **FAMILIES[name],
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


def section_names() -> list[str]:
    """Returns all sections, in the order of the report."""
    families = [f"equality:{name}" for name in FAMILIES]
    checks = ["devices", *families, "logical", "memory", "exhausted"]
    return [*checks, *engines.WORKLOADS]


def _section_rows(name: str) -> list[Row]:
    devices, brief = _OF_KIND[_DEVICES.value], _BRIEF.value
    _split_devices(name)
    if name == "devices":
        return device_rows()
    kind, _, family = name.partition(":")
    if kind == "equality":
        with tempfile.TemporaryDirectory() as folder:
            return equality_rows(family, devices, pathlib.Path(folder))
    if name == "memory":
        return memory_rows(devices.tested, (1, 2) if brief else (10, 100, 1000))
    if name == "logical":
        return logical_rows(devices, workloads.Workload("logical", "dense", 6, 20, 10))
    if name == "exhausted":
        if _DEVICES.value != "gpu":
            return [Row("memory exhausted", "only a GPU's memory can be limited")]
        return exhausted_rows(devices.tested, _LIMIT_MEGABYTES * 2**20)
    workload = engines.WORKLOADS[name]
    if brief:
        workload = dataclasses.replace(
            workload, num_clients=2, examples_per_client=workload.batch_size
        )
    return workload_rows(workload, devices, seconds=0.0 if brief else 3.0)


def _split_devices(section: str) -> None:
    """Creates the logical devices of a section."""
    if _DEVICES.value == "cpu_logical":
        cpu = tf.config.list_physical_devices("CPU")[0]
        part = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [part, part])
    elif section in ("logical", "exhausted"):
        gpu = tf.config.list_physical_devices("GPU")[0]
        part = tf.config.LogicalDeviceConfiguration(memory_limit=_LIMIT_MEGABYTES)
        parts = [part, part] if section == "logical" else [part]
        tf.config.set_logical_device_configuration(gpu, parts)


def _run_section(name: str, folder: pathlib.Path, seconds: float) -> list[Row]:
    """Runs a section in another process."""
    if seconds <= 0:
        return [Row(name, "not run: no time left (--minutes)", False)]
    file = name.replace(":", "-")
    outcome = processes.run(
        [
            sys.executable,
            __file__,
            f"--section={name}",
            f"--devices={_DEVICES.value}",
            f"--brief={_BRIEF.value}",
        ],
        result=folder / "logs" / f"{file}.json",
        log=folder / "logs" / f"{file}.txt",
        timeout=min(seconds, _SECTION_SECONDS),
        cwd=_ROOT,
        gpu=True,
    )
    if outcome.error is not None:
        return [Row(name, f"{outcome.error} (see logs/{file}.txt)", False)]
    return [Row(**row) for row in outcome.results]


def _write_section(name: str) -> None:
    """Writes a section's rows, or the reason why there are none."""
    path = pathlib.Path(_RESULT.value)
    try:
        rows = _section_rows(name)
    except Exception as error:
        reason = f"{type(error).__name__}: {messages.one_line(error)}"
        path.write_text(json.dumps({"error": reason}), "utf-8")
        raise
    content = {"results": [attrs.asdict(row) for row in rows]}
    path.write_text(json.dumps(content), "utf-8")


def main(argv: list[str]) -> None:
    """Runs every section and writes the report."""
    del argv  # There are only flags.
    if _SECTION.value is not None:
        _write_section(_SECTION.value)
        return
    if _DEVICES.value == "gpu" and not tf.config.list_physical_devices("GPU"):
        sys.exit(
            "TensorFlow sees no GPU: install requirements-gpu.txt (make setup GPU=1), "
            "or check only the logic with --devices=cpu_logical."
        )
    names = _SECTIONS.value or section_names()
    unknown = sorted(set(names) - set(section_names()))
    if unknown:
        raise app.UsageError(
            f"--sections: expected names out of {', '.join(section_names())}, found "
            f"{', '.join(unknown)}."
        )
    folder = pathlib.Path(_OUTPUT_DIR.value)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    start = time.monotonic()

    def run(name: str) -> list[Row]:
        left = 60 * _MINUTES.value - (time.monotonic() - start)
        rows = _run_section(name, folder, left)
        elapsed = time.monotonic() - start
        print(f"{name}: done after {elapsed:.0f} s", file=sys.stderr, flush=True)
        return rows

    timed = [name for name in names if name in engines.WORKLOADS]
    checks = [name for name in names if name not in timed]
    with futures.ThreadPoolExecutor(max(1, cpus.count() // 2)) as threads:
        found = list(threads.map(run, checks))
    found += map(run, timed)
    sections = collections.defaultdict(list)
    for name, rows in zip([*checks, *timed], found, strict=True):
        sections[name.partition(":")[0]] += rows
    if not gpu_report.write(folder, sections, time.monotonic() - start):
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
