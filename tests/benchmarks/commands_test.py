"""The benchmarks' commands: of the Makefile, and those that their docstrings show."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tests.testing import package_index

_ROOT = pathlib.Path(__file__).parents[2]
_SHORTEST = ["--quick", "--minutes=0"]
# The shortest run of each; those that are not here, other tests run.
_SHORT = {
    "adjoint": ["--steps=1", "--repetitions=1", "--batch_size=2"],
    "aggregation": ["--cohorts=4", "--timed_rounds=1", "--examples_per_client=2"],
    "algorithms": ["--algorithms=gradma", "--models=logistic", "--rounds=1"],
    "client_memory_cost": ["--populations=1000", "--memory_rounds=10"],
    "ray_overhead": ["--workloads=W2", "--workers=1", "--rounds=1"],
    "runtimes": [*_SHORTEST, "--workloads=W2", "--engines=tff_in_process"],
}
_ELSEWHERE = {"communication", "gpu_check", "scaling"}
_PROGRAMS = sorted(_SHORT.keys() | _ELSEWHERE)


_PAGES = "\n".join(path.read_text() for path in sorted((_ROOT / "docs").rglob("*.md")))
# What the pages choose to measure, with other frameworks where they name them.
_CHOSEN = re.findall(
    r"(?:benchmarks/runtimes\.py |BENCH_RUNTIMES_FLAGS=)(--[^`]*)`", _PAGES
)


# What all pages call with `make`, in a line or in a block.
_MADE = sorted(
    {
        inline or in_block.partition("#")[0].strip()
        for page in ("README.md", "CONTRIBUTING.md", *(_ROOT / "docs").rglob("*.md"))
        for inline, in_block in re.findall(
            r"`(make [^`]+)`|^(make .+)$", (_ROOT / page).read_text(), re.MULTILINE
        )
    }
)


def _source(program: str) -> str:
    return (_ROOT / "benchmarks" / f"{program}.py").read_text()


def test_all_programs_are_here():
    found = {path.stem for path in (_ROOT / "benchmarks").glob("*.py")}
    assert found - {"__init__"} == set(_PROGRAMS)
    makefile = (_ROOT / "Makefile").read_text()
    assert set(re.findall(r"benchmarks/(\w+)\.py", makefile)) <= set(_PROGRAMS)


def test_what_the_pages_make_is_found():
    assert {"make run", "make bench-adjoint BENCH_ADJOINT_FLAGS="} <= set(_MADE)


@pytest.mark.parametrize("command", _MADE)
def test_make_knows_what_the_pages_make(command):
    makefile = (_ROOT / "Makefile").read_text()
    for variable in re.findall(r"(\w+)=", command):
        assert re.search(rf"^{variable} \?=", makefile, re.MULTILINE), variable
    words = [*shlex.split(command), "--dry-run"]
    shown = subprocess.run(
        words, capture_output=True, text=True, check=True, cwd=_ROOT
    ).stdout
    for program, flags in re.findall(r"benchmarks/(\w+)\.py ?(.*)", shown):
        assert program in _PROGRAMS
        variable = re.search(r"(\w+_FLAGS)=(\S*)", command)
        assert variable is None or flags.strip() == variable[2]


@pytest.mark.parametrize("program", _PROGRAMS)
def test_the_flags_that_it_shows_are_its_own(program):
    source = _source(program)
    docstring = source.split('"""')[1]
    shown = set(re.findall(r" --(\w+)", docstring))
    declared = re.findall(r'(?:DEFINE_\w+|add_argument)\(\s*"(?:--)?(\w+)"', source)
    assert shown <= set(declared)


def test_what_the_pages_choose_is_found():
    assert any("flower" in flags for flags in _CHOSEN) and len(_CHOSEN) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("flags", _CHOSEN)
def test_what_the_pages_choose_to_measure_runs(flags, tmp_path):
    if "flower" in flags:
        package_index.require()
    chosen = [*flags.split(), *_SHORTEST]
    if "--engines=" not in flags:
        chosen.append("--engines=tff_in_process")
    _run("runtimes", chosen, tmp_path)
    measured = (tmp_path / "tables.md").read_text()
    (engines,) = re.findall(r"--engines=(\S+)", " ".join(chosen))
    for engine in engines.split(","):
        assert re.search(rf"^\| {engine} +\| +\d", measured, re.MULTILINE), engine


@pytest.mark.slow
@pytest.mark.parametrize("program", _SHORT)
def test_it_runs(program, tmp_path):
    _run(program, _SHORT[program], tmp_path)


def _run(program: str, flags: list[str], folder: pathlib.Path) -> None:
    if program == "ray_overhead" or "tff_ray" in " ".join(flags):
        pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    flag = {"algorithms": "--table_dir", "runtimes": "--output_dir"}.get(program)
    where = [f"{flag}={folder}"] if flag else []
    done = subprocess.run(
        [sys.executable, f"benchmarks/{program}.py", *flags, *where],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
    )
    assert done.returncode == 0, done.stderr
    # A row that died is reported in its table.
    assert "|" in done.stdout and not re.search(r"\b(died|failed)\b", done.stdout)
