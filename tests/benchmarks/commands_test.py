"""The benchmarks' commands: of the Makefile, and those that their docstrings show."""

import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
# The shortest run of each; those that are not here, other tests run.
_SHORT = {
    "adjoint": ["--steps=1", "--repetitions=1", "--batch_size=2"],
    "aggregation": ["--cohorts=4", "--timed_rounds=1", "--examples_per_client=2"],
    "algorithms": ["--algorithms=gradma", "--models=logistic", "--rounds=1"],
    "client_memory_cost": ["--populations=1000", "--memory_rounds=10"],
    "ray_overhead": ["--workloads=W2", "--workers=1", "--rounds=1"],
    "runtimes": [
        "--quick",
        "--workloads=W2",
        "--engines=tff_in_process",
        "--minutes=0",
    ],
    "step_correction": ["--timed_steps=1", "--turns=1", "--examples=2"],
}
_ELSEWHERE = {"communication", "gpu_check", "scaling"}
_PROGRAMS = sorted(_SHORT.keys() | _ELSEWHERE)


def _source(program: str) -> str:
    return (_ROOT / "benchmarks" / f"{program}.py").read_text()


def test_all_programs_are_here():
    found = {path.stem for path in (_ROOT / "benchmarks").glob("*.py")}
    assert found - {"__init__"} == set(_PROGRAMS)
    makefile = (_ROOT / "Makefile").read_text()
    assert set(re.findall(r"benchmarks/(\w+)\.py", makefile)) <= set(_PROGRAMS)


@pytest.mark.parametrize("program", _PROGRAMS)
def test_the_flags_that_it_shows_are_its_own(program):
    source = _source(program)
    docstring = source.split('"""')[1]
    shown = set(re.findall(r" --(\w+)", docstring))
    declared = re.findall(r'(?:DEFINE_\w+|add_argument)\(\s*"(?:--)?(\w+)"', source)
    assert shown <= set(declared)


@pytest.mark.slow
@pytest.mark.parametrize("program", _SHORT)
def test_it_runs(program, tmp_path):
    if program == "ray_overhead":
        pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    folder = {"algorithms": "--table_dir", "runtimes": "--output_dir"}.get(program)
    where = [f"{folder}={tmp_path}"] if folder else []
    done = subprocess.run(
        [sys.executable, f"benchmarks/{program}.py", *_SHORT[program], *where],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
    )
    assert done.returncode == 0, done.stderr
    # A row that died is reported in its table.
    assert "|" in done.stdout and not re.search(r"\b(died|failed)\b", done.stdout)
