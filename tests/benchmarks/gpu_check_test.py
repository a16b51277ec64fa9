"""The check of GPUs: its logic, on CPUs.

No time is asserted.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import gpu_check
from benchmarks.comparison import engines, gpu_checks, gpu_report
from benchmarks.comparison.gpu_checks import Devices
from benchmarks.comparison.gpu_report import Row
from benchmarks.engines.workloads import Workload
from tff_algos.experiments import catalog

ONE_CPU = Devices("CPU:0", ("CPU:0", "CPU:0"))
SMALL = Workload("small", "dense", 3, 4, 2)


def test_every_workload_is_a_section_after_the_checks():
    names = gpu_check.section_names()
    assert names[-len(engines.WORKLOADS) :] == list(engines.WORKLOADS)
    assert len(names) == len(set(names))


def test_families_are_algorithms():
    for name in gpu_checks.FAMILIES:
        assert catalog.get(name).name == name


def test_workloads_agree_with_loops_by_hand():
    rows = gpu_checks.workload_rows(SMALL, ONE_CPU, seconds=0.0)
    assert [row.passed for row in rows][-1:] == [True]
    assert "1.00 times ours" in rows[0].found


@pytest.mark.parametrize(
    ("second", "passed"), [(1.001, True), (1.1, False), (np.nan, False)]
)
def test_weights_that_moved_elsewhere_fail(second, passed):
    trained, expected, initial = [np.array([1.0, second])], [np.ones(2)], [np.zeros(2)]
    row = gpu_checks._compared("weights", trained, expected, initial, 1e-2)
    assert row.passed is passed


@pytest.mark.parametrize(
    ("peaks", "passed"), [((5, 10, 10), True), ((5, 10, 20), False)]
)
def test_memory_that_grows_with_the_last_cohort_fails(peaks, passed, monkeypatch):
    memory, remaining = gpu_checks.tf.config.experimental, iter(peaks)
    monkeypatch.setattr(memory, "reset_memory_stats", lambda device: None)
    monkeypatch.setattr(
        memory, "get_memory_info", lambda device: {"peak": next(remaining) * 2**20}
    )
    monkeypatch.setattr(gpu_checks, "_measure", lambda *args, **kwargs: None)
    *_, flat = gpu_checks.memory_rows("GPU:0", (1, 2, 3))
    assert flat.passed is passed


def test_two_devices_are_compared_with_one():
    (row,) = gpu_checks.logical_rows(ONE_CPU, SMALL)
    assert row.passed and row.check == "CPU:0 and CPU:0"


def test_equality_is_of_changes_and_has_a_row_for_each_precision(tmp_path):
    rows = gpu_checks.equality_rows("fedavg", ONE_CPU, tmp_path)
    assert [row.check for row in rows] == [
        "fedavg, without TF32",
        "fedavg, with TF32",
    ]
    assert all(row.passed for row in rows)


def test_memory_that_tensorflow_does_not_know_is_no_failure(monkeypatch):
    def unknown(device):
        raise ValueError(f"No allocator statistics for {device}")

    memory = gpu_checks.tf.config.experimental
    monkeypatch.setattr(memory, "reset_memory_stats", unknown)
    (row,) = gpu_checks.memory_rows("CPU:0", (1, 2))
    assert row.passed is None
    assert row.found == "No allocator statistics for CPU:0"


def _raise_if_too_many(limit):
    return lambda count, _: "OOM when allocating" if count > limit else None


def test_exhausted_memory_names_how_many_clients_to_try(monkeypatch):
    megabyte = 2**20
    assert gpu_checks.clients_to_try(512 * megabyte, 4 * megabyte) == 32
    assert gpu_checks.clients_to_try(1, megabyte) == 1
    monkeypatch.setattr(gpu_checks, "_error_of_gathering", _raise_if_too_many(50))
    first, second = gpu_checks.exhausted_rows("GPU:0", 512 * megabyte)
    assert first.passed and first.found == "OOM when allocating; try 27 clients"
    assert second.passed and second.check == "27 clients"
    # If nothing is exhausted, the check has not checked anything.
    monkeypatch.setattr(gpu_checks, "_error_of_gathering", _raise_if_too_many(1e9))
    first, _ = gpu_checks.exhausted_rows("GPU:0", 512 * megabyte)
    assert first.passed is False


def test_the_report_says_what_failed(tmp_path, capsys):
    sections = {"a": [Row("x", "1 | 2"), Row("y", "bad", False)], "b": []}
    assert not gpu_report.write(tmp_path, sections, 1.0)
    text = (tmp_path / "report.md").read_text()
    assert "1 failed: a: y." in text and "| y | bad | FAILED |" in text
    assert "| x | 1 / 2 |  |" in text and text in capsys.readouterr().out
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["sections"]["a"][1]["passed"] is False
    assert gpu_report.write(tmp_path, {"a": [Row("y", "good", True)]}, 1.0)


def _run(*arguments):
    return subprocess.run(
        [sys.executable, gpu_check.__file__, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_without_a_gpu_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    done = _run(f"--report_dir={tmp_path}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("TensorFlow sees no GPU")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("minutes", "status", "found"), [(5, 0, "passed"), (0, 1, "no time left")]
)
def test_sections_run_on_two_logical_cpus(tmp_path, minutes, status, found):
    done = _run(
        "--devices=cpu_logical",
        "--brief",
        "--sections=logical",
        f"--minutes={minutes}",
        f"--report_dir={tmp_path}",
    )
    assert done.returncode == status, done.stderr
    assert found in (tmp_path / "report.md").read_text()
