"""Engines in processes of their own: what ends them, what they take, what they tell.

No time is asserted and nothing is downloaded.
"""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks.comparison import (
    environments,
    machine,
    processes,
)
from benchmarks.engines import cpu_time, recorder, workloads
from benchmarks.engines.workloads import Workload


@pytest.fixture
def run_engine(tmp_path, monkeypatch):
    """Runs `recorder.main` in this process, returns what it wrote."""

    def run(engine, *arguments):
        paths = []
        for name in ("first", "second"):
            workload = Workload(name, "dense", 1, 2, 2)
            paths.append(str(tmp_path / f"{name}.npz"))
            workloads.generate(workload, 0).save(paths[-1])
        result = tmp_path / "result.json"
        command = ["engine", "--inputs", *paths, f"--result={result}", *arguments]
        monkeypatch.setattr(sys, "argv", command)
        try:
            recorder.main(engine)
        finally:
            content = json.loads(result.read_text())
        return content

    return run


def test_engines_are_stopped_after_enough_rounds(run_engine, tmp_path):
    def engine(inputs, record, arguments):
        del arguments
        record.start()
        weights = list(inputs.weights)
        another = True
        while another:
            weights = [w + 1 for w in weights]
            trained = list(weights)
            another = record.finish_round(lambda trained=trained: trained)

    path = tmp_path / "weights.npz"
    content = run_engine(engine, "--seconds=1e9", "--max_rounds=4", f"--weights={path}")
    assert [r["workload"] for r in content["results"]] == ["first", "second"]
    for clock in ("round_seconds", "round_cpu_seconds"):
        assert [len(r[clock]) for r in content["results"]] == [4, 4]
    with np.load(path) as file:
        initial = workloads.load(tmp_path / "first.npz").weights
        np.testing.assert_allclose(file["arr_0"], initial[0] + 2, rtol=1e-6)
    # Two rounds there are always: the weights are compared after the second one.
    content = run_engine(engine, "--seconds=0")
    assert [len(r["round_seconds"]) for r in content["results"]] == [2, 2]


@pytest.mark.parametrize(
    ("text", "expected", "line"),
    [
        (
            "model name\t: AMD EPYC\nflags\t\t: fpu avx avx2\n\nmodel name\t: other\n",
            {"processor": "AMD EPYC", "avx2": True, "avx512": False},
            "AMD EPYC, AVX2: yes, AVX-512: no",
        ),
        (
            "model name\t: Xeon @ 2.00GHz\nflags : avx512f avx2\n",
            {"processor": "Xeon @ 2.00GHz", "avx2": True, "avx512": True},
            "Xeon @ 2.00GHz, AVX2: yes, AVX-512: yes",
        ),
        ("model name : Cortex\n", {"processor": "Cortex"}, "Cortex"),
    ],
)
def test_processors_in_words(text, expected, line):
    described = machine.parse_cpuinfo(text)
    assert described == expected
    assert machine.processor_line(described) == line


def test_cpu_time_is_read_from_stat_files():
    # The name has a space and parentheses; user, system, children's user and system.
    line = "7 (a) b (c)) S 5 7 7 0 -1 0 0 0 0 0 100 20 3 4 20 0 1 0 99 0\n"
    assert cpu_time.parse_stat(line) == (5, 127)


def test_cpu_time_includes_all_descendants():
    stats = {1: (0, 1000), 2: (1, 100), 3: (2, 10), 4: (3, 1), 5: (1, 7), 6: (9, 8)}
    assert cpu_time.descendants_ticks(2, stats) == 11
    assert cpu_time.descendants_ticks(6, stats) == 0


def test_cpu_time_includes_children_that_have_ended():
    clock = cpu_time.CpuClock()
    start = clock.seconds()
    program = "import time\nwhile time.process_time() < 0.1: pass"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert clock.seconds() - start > 0.09


def test_no_workload_begins_that_would_end_too_late(run_engine):
    def engine(inputs, record, arguments):
        del inputs, arguments
        record.start()
        while record.finish_round(list):
            pass

    started = time.monotonic() - 100
    content = run_engine(engine, "--limit_seconds=50", f"--process_start={started}")
    assert [r["workload"] for r in content["results"]] == ["first"]


@pytest.mark.parametrize(
    ("error", "raised", "reason"),
    [
        (recorder.NotAvailableError("not here"), SystemExit, "not here"),
        (RuntimeError("broken\nat line 3"), RuntimeError, "RuntimeError: broken"),
    ],
)
def test_failures_are_told_in_one_line(run_engine, tmp_path, error, raised, reason):
    def engine(inputs, record, arguments):
        raise error

    with pytest.raises(raised):
        run_engine(engine)
    assert json.loads((tmp_path / "result.json").read_text()) == {"error": reason}


def _run_python(tmp_path, program, timeout=60.0):
    return processes.run(
        [sys.executable, "-c", program],
        result=tmp_path / "result.json",
        log=tmp_path / "log.txt",
        timeout=timeout,
        cwd=tmp_path,
    )


def test_processes_give_results_and_memory(tmp_path):
    program = (
        "import json, sys, time\n"
        "space = b'x' * 2**26\n"
        "time.sleep(1)\n"
        "path = sys.argv[-1].removeprefix('--result=')\n"
        "json.dump({'results': [{'a': 1}]}, open(path, 'w'))\n"
    )
    outcome = _run_python(tmp_path, program)
    assert outcome.error is None and outcome.results == ({"a": 1},)
    assert 64 < outcome.peak_megabytes < 1000


def test_dead_processes_are_failures(tmp_path):
    outcome = _run_python(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert outcome.error == "ended by SIGKILL" and not outcome.results
    outcome = _run_python(tmp_path, "raise SystemExit(3)")
    assert outcome.error == "ended without a result, exit status 3"


def test_processes_that_hang_are_ended_with_their_children(tmp_path):
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(99)\n"
    )
    outcome = _run_python(tmp_path, program, timeout=2.0)
    assert outcome.error == "killed after 2 s"
    child = int((tmp_path / "log.txt").read_text())
    assert not processes.psutil.pid_exists(child)


def test_environments_that_cannot_be_made_say_why(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "_REQUIREMENTS", tmp_path)
    (tmp_path / "jax.txt").write_text("no version of this\n")
    monkeypatch.setattr(environments.sys, "executable", str(tmp_path / "no python"))
    with pytest.raises(environments.EnvironmentSetupError, match="no python"):
        environments.python_of("jax", tmp_path)
