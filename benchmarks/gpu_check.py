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
import sys
import tempfile
import time
from concurrent import futures

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The checks share the GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

from tff_algos import compat  # noqa: F401  # isort: skip

import attrs
import tensorflow as tf
from absl import app, flags

from benchmarks.comparison import engines, gpu_checks, gpu_report, processes
from benchmarks.comparison.gpu_report import Row
from benchmarks.engines import workloads
from tff_algos import cpus, messages

_OUTPUT_DIR = flags.DEFINE_string("report_dir", "runs/gpu-check", "The report.")
_DEVICES = flags.DEFINE_enum(
    "devices",
    "gpu",
    ["gpu", "cpu_logical"],
    "What to check: the first GPU, or the second of two logical CPUs.",
)
_SECTIONS = flags.DEFINE_list("sections", None, "Names of sections; default: all.")
_BRIEF = flags.DEFINE_bool("brief", False, "Small sizes.")
_MINUTES = flags.DEFINE_float("minutes", 7.5, "Time for all sections.", lower_bound=0)
# For the processes of sections.
_SECTION = flags.DEFINE_string("section", None, "Runs this section in this process.")
_RESULT = flags.DEFINE_string("result", None, "JSON file of --section.")
flags.DEFINE_float("process_start", 0.0, "Ignored.")

_ROOT = pathlib.Path(__file__).parents[1]
_SECTION_SECONDS = 240.0


def section_names() -> list[str]:
    """Returns all sections, in the order of the report."""
    families = [f"equality:{name}" for name in gpu_checks.FAMILIES]
    checks = ["devices", *families, "logical", "memory", "exhausted"]
    return [*checks, *engines.WORKLOADS]


def _section_rows(name: str) -> list[Row]:
    devices, brief = gpu_checks.OF_KIND[_DEVICES.value], _BRIEF.value
    _split_devices(name)
    if name == "devices":
        return gpu_checks.device_rows()
    kind, _, family = name.partition(":")
    if kind == "equality":
        with tempfile.TemporaryDirectory() as folder:
            return gpu_checks.equality_rows(family, devices, pathlib.Path(folder))
    if name == "memory":
        return gpu_checks.memory_rows(
            devices.tested, (1, 2) if brief else (10, 100, 1000)
        )
    if name == "logical":
        return gpu_checks.logical_rows(
            devices, workloads.Workload("logical", "dense", 6, 20, 10)
        )
    if name == "exhausted":
        if _DEVICES.value != "gpu":
            return [Row("memory exhausted", "only a GPU's memory can be limited")]
        return gpu_checks.exhausted_rows(
            devices.tested, gpu_checks.LIMIT_MEGABYTES * 2**20
        )
    workload = engines.WORKLOADS[name]
    if brief:
        workload = dataclasses.replace(
            workload, num_clients=2, examples_per_client=workload.batch_size
        )
    return gpu_checks.workload_rows(workload, devices, seconds=0.0 if brief else 3.0)


def _split_devices(section: str) -> None:
    """Creates the logical devices of a section."""
    if _DEVICES.value == "cpu_logical":
        cpu = tf.config.list_physical_devices("CPU")[0]
        part = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [part, part])
    elif section in ("logical", "exhausted"):
        gpu = tf.config.list_physical_devices("GPU")[0]
        part = tf.config.LogicalDeviceConfiguration(
            memory_limit=gpu_checks.LIMIT_MEGABYTES
        )
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
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}.")
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
