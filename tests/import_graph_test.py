"""Imports go one way: the library knows nothing of runs, `execution` nothing of learning."""

import ast
import functools
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_LIBRARY = {
    "aggregators",
    "algorithms",
    "client_works",
    "clients",
    "execution",
    "finalizers",
    "layers",
    "models",
    "solvers",
}
# What each package of the library may import of the others.
_MAY_IMPORT = {
    "execution": set(),
    "solvers": set(),
    "clients": {"execution", "models"},
    "layers": set(),
    "models": set(),
    "aggregators": {"solvers"},
    "finalizers": {"aggregators", "client_works", "clients", "models", "solvers"},
    "client_works": {"aggregators", "clients", "models", "solvers"},
    "algorithms": _LIBRARY - {"execution"},
}
# What belongs to runs, of which the library must know nothing.
_OF_RUNS = {"psutil", "matplotlib", "tqdm", "main", "benchmarks", "tasks"}
_FLAGS = {"absl.app", "absl.flags"}


@functools.cache
def _imports(path: pathlib.Path) -> frozenset[str]:
    """Returns the dotted names that a file imports, submodules included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return frozenset(names)


def _files(folder: str) -> list[pathlib.Path]:
    found = sorted((_ROOT / folder).rglob("*.py"))
    assert found, folder
    return found


def _of_runs(path: pathlib.Path) -> set[str]:
    """Returns what a file imports that only runs need."""
    names = _imports(path)
    return ({name.partition(".")[0] for name in names} & _OF_RUNS) | (names & _FLAGS)


def _packages_of(path: pathlib.Path) -> set[str]:
    """Returns which packages of tff_algos a file imports."""
    parts = [name.split(".") for name in _imports(path)]
    return {p[1] for p in parts if p[0] == "tff_algos" and len(p) > 1}


@pytest.mark.parametrize("package", sorted(_LIBRARY))
def test_the_library_imports_nothing_of_runs(package):
    for path in _files(f"tff_algos/{package}"):
        assert not _of_runs(path), path
        assert "experiments" not in _packages_of(path), path


@pytest.mark.parametrize("package", sorted(_LIBRARY))
def test_packages_of_the_library_import_one_way(package):
    for path in _files(f"tff_algos/{package}"):
        others = (_packages_of(path) & _LIBRARY) - {package}
        assert others <= _MAY_IMPORT[package], path


def test_importing_the_library_imports_no_run():
    """The files beside the packages are the library's too."""
    for path in (_ROOT / "tff_algos").glob("*.py"):
        assert "experiments" not in _packages_of(path), path
        assert not _of_runs(path), path


def test_tasks_know_no_algorithm_and_no_run():
    for path in _files("tasks"):
        allowed = {
            "autograph",
            "clients",
            "column_roles",
            "csv_files",
            "layers",
            "models",
            "hyperparameters",
            "messages",
            "paths",
            "execution",
        }
        assert _packages_of(path) <= allowed, path


def test_flags_are_touched_in_the_command_line_alone():
    files = [*_files("tff_algos"), *_files("tasks"), _ROOT / "main.py"]
    # Parsing all files takes a second.
    of_absl = [path for path in files if "absl" in path.read_text()]
    users = {path.name for path in of_absl if _FLAGS & _imports(path)}
    # Others parse flags, apart from those of the program.
    assert users == {"cli.py", "run_flags.py", "command.py", "rows.py"}
    of_program = {path.name for path in files if "flags.FLAGS" in path.read_text()}
    assert of_program == {"cli.py"}
