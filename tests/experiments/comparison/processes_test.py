"""Calls of the command line: their output, their CPUs, their end."""

import sys
from concurrent import futures

import pytest

from tff_algos.experiments.comparison import processes


def test_the_command_is_called_and_its_output_kept(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    monkeypatch.setattr(processes, "_COMMAND", (sys.executable, script))
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    assert processes.Program()(["--a=1"], log) == 7
    assert log.read_text() == "before\n['--a=1']\n"


def test_the_command_imports_what_this_process_can_and_nothing_else(
    tmp_path, monkeypatch
):
    (tmp_path / "tasks.py").write_text("raise ImportError('another package')")
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "their_module.py").write_text(
        "import attrs; from tff_algos.experiments import catalog\n"
        "RECIPES = [attrs.evolve(catalog.get('fedavg'), name='theirs')]"
    )
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log.txt"
    status = processes.Program()(["--module=their_module", "--list"], log)
    assert status == 0, log.read_text()
    assert "theirs" in log.read_text()


@pytest.mark.parametrize(
    ("jobs", "shares"),
    [(1, [{0, 2, 5}]), (2, [{0, 2}, {5}]), (4, [{0}, {2}, {5}, {0}])],
)
def test_cpus_are_divided_among_jobs(monkeypatch, jobs, shares):
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: {5, 0, 2})
    assert processes.cpu_shares(jobs) == shares


def test_calls_at_the_same_time_keep_to_their_shares_of_the_cpus(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time; time.sleep(0.5); print(sorted(os.sched_getaffinity(0)))"
    )
    monkeypatch.setattr(processes, "_COMMAND", (sys.executable, script))
    logs = [tmp_path / name for name in "abc"]
    with futures.ThreadPoolExecutor(2) as executor:
        program = processes.Program(jobs=2)
        assert list(executor.map(program, [[]] * 3, logs)) == [0, 0, 0]
    first, second = (str(sorted(share)) for share in processes.cpu_shares(2))
    at_once = {log.read_text().strip() for log in logs[:2]}
    assert at_once == {first, second}
    assert logs[2].read_text().strip() in at_once


def test_calls_that_run_are_ended_by_stop(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(processes, "_COMMAND", (sys.executable, script))
    program = processes.Program()
    program.stop()
    assert program([], tmp_path / "log.txt") == -15
