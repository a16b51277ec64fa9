"""The BUILD files list every Python file, with deps that are its imports."""

import ast
import graphlib

import pytest

from tests.testing import build_files


def test_build_files_are_up_to_date():
    if not (build_files.ROOT / "BUILD").exists():
        pytest.skip("not a whole checkout: there is no BUILD")
    wrong = build_files.out_of_date(build_files.ROOT)
    lines = [f"{path} {reason}" for path, reason in wrong.items()]
    assert not wrong, "\n".join([*lines, "`make build-file` mends this."])


def _targets(package: str, content: str) -> dict[str, dict[str, object]]:
    """Returns what a BUILD file defines: labels, and their rules' literal arguments."""
    found = {}
    for statement in ast.parse(content).body:
        call = statement.value
        if call.func.id == "exports_files":
            names = ast.literal_eval(call.args[0])
            rules = [{"rule": "file", "name": name} for name in names]
        else:
            literals = {
                word.arg: ast.literal_eval(word.value)
                for word in call.keywords
                if not isinstance(word.value, ast.Call)
            }
            rules = [{"rule": call.func.id, **literals}]
        for rule in rules:
            if name := rule.pop("name", None):
                assert f"//{package}:{name}" not in found
                found[f"//{package}:{name}"] = rule
    return found


def _all_targets(files: dict[str, str]) -> dict[str, dict[str, object]]:
    found = {}
    for path, content in files.items():
        found |= _targets(path.rpartition("/")[0], content)
    return found


def _whole(label: str, package: str) -> str:
    if label.startswith(":"):
        return f"//{package}{label}"
    return label if ":" in label else f"{label}:{label.rpartition('/')[2]}"


def _needed(label: str, rule: dict[str, object]) -> set[str]:
    """Returns the labels that a target needs, each whole."""
    package = label.removeprefix("//").partition(":")[0]
    labels = (*rule.get("deps", ()), *rule.get("data", ()), rule.get("main"))
    return {_whole(needed, package) for needed in labels if needed}


def test_what_targets_need_is_there_and_not_in_circles():
    targets = _all_targets(build_files.expected(build_files.ROOT))
    needed = {label: _needed(label, rule) for label, rule in targets.items()}
    assert set().union(*needed.values()) <= targets.keys()
    graphlib.TopologicalSorter(needed).prepare()


_SMALL = {
    "README.md": "See docs.",
    "docs/page.md": "",
    "main.py": "import tasks, tff_algos.solvers\n",
    "tasks/__init__.py": "from tasks import one\n",
    "tasks/one.py": "import numpy as np\n",
    "tests/conftest.py": "",
    "tests/pytest_main.py": "",
    "tests/tool.py": "import main\nFILE = pathlib.Path(__file__) / 'durations.tsv'\n",
    "tests/durations.tsv": "",
    "tests/tasks/one_test.py": (
        "from tasks import one\n_README, _MAIN = ROOT / 'README.md', ROOT / 'main.py'\n"
    ),
    "tff_algos/__init__.py": "",
    "tff_algos/solvers/__init__.py": "import tff_algos.solvers.solvers\n",
    "tff_algos/solvers/solvers.py": "",
}


@pytest.fixture
def checkout(tmp_path):
    for name, content in _SMALL.items():
        path = tmp_path.joinpath(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def test_a_folder_of_python_files_has_a_build_file_of_their_targets(checkout):
    files = build_files.expected(checkout)
    assert list(files) == [
        "BUILD",
        "tasks/BUILD",
        "tests/BUILD",
        "tests/tasks/BUILD",
        "tff_algos/BUILD",
        "tff_algos/solvers/BUILD",
    ]
    assert _all_targets(files) == {
        "//:README.md": {"rule": "file"},
        "//:docs": {"rule": "filegroup"},
        "//:main": {
            "rule": "py_binary",
            "srcs": ["main.py"],
            "deps": ["//tasks", "//tff_algos/solvers:__init__"],
        },
        "//tasks:one": {"rule": "py_library", "srcs": ["one.py"]},
        "//tasks:tasks": {
            "rule": "py_library",
            "srcs": ["__init__.py"],
            "deps": [":one"],
        },
        "//tests:conftest": {"rule": "py_library", "srcs": ["conftest.py"]},
        "//tests:durations.tsv": {"rule": "file"},
        "//tests:pytest_main.py": {"rule": "file"},
        "//tests:tool": {
            "rule": "py_library",
            "srcs": ["tool.py"],
            "data": [":durations.tsv"],
            "deps": ["//:main"],
        },
        "//tests/tasks:one_test": {
            "rule": "py_test",
            "srcs": ["one_test.py", "//tests:pytest_main.py"],
            "main": "//tests:pytest_main.py",
            "data": ["//:README.md", "//:docs", "//:main"],
            # It imports one of these; Python and pytest import the others before.
            "deps": ["//tasks", "//tasks:one", "//tests:conftest"],
        },
        "//tff_algos:tff_algos": {"rule": "py_library", "srcs": ["__init__.py"]},
        "//tff_algos/solvers:__init__": {
            "rule": "py_library",
            "srcs": ["__init__.py"],
            "deps": [":solvers"],
        },
        "//tff_algos/solvers:solvers": {"rule": "py_library", "srcs": ["solvers.py"]},
    }


def test_what_is_out_of_date_is_named_and_mended(checkout):
    missing = dict.fromkeys(build_files.expected(checkout), "is missing")
    assert build_files.out_of_date(checkout) == missing
    build_files.write(checkout)
    assert not build_files.out_of_date(checkout)
    checkout.joinpath("tasks/one.py").write_text("import main\n")
    checkout.joinpath("tests/tasks/one_test.py").unlink()
    assert build_files.out_of_date(checkout) == {
        "tasks/BUILD": "is not what the Python files import and read",
        "tests/tasks/BUILD": "has no Python files",
    }
    build_files.write(checkout)
    assert not build_files.out_of_date(checkout)
    assert not checkout.joinpath("tests/tasks/BUILD").exists()


def test_imports_are_found_in_every_form():
    files = {"a/__init__.py", "a/b.py", "a/c/__init__.py", "a/c/d.py", "e.py"}
    source = (
        "import os, e\nfrom a import b, something\nfrom a.c import thing\n"
        "def f():\n  import a.c.d as d\n"
    )
    assert build_files.imported_files(source, files) == files
    assert build_files.imported_files("from a import b", files) == {"a/b.py"}
    with pytest.raises(ValueError, match="relative"):
        build_files.imported_files("from . import b", files)
