"""Tests that BUILD lists every Python file, with deps that are its imports.

`python tests/build_test.py --print > BUILD` writes the file anew.
"""

import ast
import pathlib
import sys
from collections.abc import Iterator

import attrs
import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_BUILD = _ROOT / "BUILD"
_FOLDERS = ("benchmarks", "tasks", "tests", "tff_algos")
_BINARIES = ("main.py",)

# Runs a test file with pytest; the one file that many targets share.
_TEST_MAIN = "tests/pytest_main.py"

_HEADER = """\
# Native Python targets for every file; a target is named as its file.
# Written by: python tests/build_test.py --print > BUILD

package(default_visibility = ["//visibility:public"])
"""


@attrs.frozen
class Target:
    """One rule of BUILD; `arguments` are those other than the ones named here."""

    rule: str
    name: str
    srcs: tuple[str, ...]
    deps: tuple[str, ...] = ()
    arguments: tuple[tuple[str, object], ...] = ()

    def format(self) -> str:
        lines = [f"{self.rule}(", f"    name = {_quoted(self.name)},"]
        lines += _formatted_list("srcs", self.srcs)
        lines += [f"    {key} = {_quoted(value)}," for key, value in self.arguments]
        if self.deps:
            lines += _formatted_list("deps", self.deps)
        return "\n".join([*lines, ")"]) + "\n"


def _quoted(value: str) -> str:
    return f'"{value}"'


def _formatted_list(key: str, values: tuple[str, ...]) -> list[str]:
    if len(values) == 1:
        return [f"    {key} = [{_quoted(values[0])}],"]
    return [f"    {key} = [", *(f"        {_quoted(v)}," for v in values), "    ],"]


def _python_files() -> list[str]:
    paths = [_ROOT / name for name in _BINARIES]
    for folder in _FOLDERS:
        paths += (_ROOT / folder).rglob("*.py")
    return sorted(path.relative_to(_ROOT).as_posix() for path in paths if path.exists())


def _module_file(module: str, files: set[str]) -> str | None:
    """Returns the file of a dotted name; `None` if it is not one of ours."""
    path = module.replace(".", "/")
    for candidate in (f"{path}.py", f"{path}/__init__.py"):
        if candidate in files:
            return candidate
    return None


def _imported_modules(source: str) -> Iterator[tuple[str, str | None]]:
    """Yields (module, name that is imported from it, if any) for each import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"Line {node.lineno}: a relative import.")
            yield from ((node.module, alias.name) for alias in node.names)


def _imported_files(source: str, files: set[str]) -> set[str]:
    found = set()
    for module, name in _imported_modules(source):
        # `from a import b`: b is a module of its own, or else in a's.
        submodule = name and _module_file(f"{module}.{name}", files)
        found.add(submodule or _module_file(module, files))
    return found - {None}


def _conftests(path: str, files: set[str]) -> set[str]:
    """Returns the files that pytest imports along with a test file."""
    parents = pathlib.PurePosixPath(path).parents
    return {f"{parent}/conftest.py" for parent in parents} & files


def _target_name(path: str) -> str:
    return path.removesuffix(".py")


def _expected_target(path: str, files: set[str]) -> Target:
    imported = _imported_files((_ROOT / path).read_text(encoding="utf-8"), files)
    arguments = ()
    srcs = (path,)
    if path.endswith("_test.py"):
        rule = "py_test"
        imported |= _conftests(path, files)
        srcs = tuple(sorted([path, _TEST_MAIN]))
        arguments = (("main", _TEST_MAIN),)
    elif path in _BINARIES:
        rule = "py_binary"
    else:
        rule = "py_library"
    deps = tuple(sorted(f":{_target_name(file)}" for file in imported - {path}))
    return Target(rule, _target_name(path), srcs, deps, arguments)


def _expected_targets() -> list[Target]:
    files = _python_files()
    return [_expected_target(path, set(files)) for path in files if path != _TEST_MAIN]


def _actual_targets() -> list[Target]:
    targets = []
    for statement in ast.parse(_BUILD.read_text(encoding="utf-8")).body:
        call = statement.value
        given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        if call.func.id.startswith("py_"):
            targets.append(
                Target(
                    call.func.id,
                    given.pop("name"),
                    tuple(given.pop("srcs")),
                    tuple(given.pop("deps", ())),
                    tuple(given.items()),
                )
            )
    return targets


@pytest.fixture(scope="module")
def targets() -> list[Target]:
    if not _BUILD.exists():
        pytest.skip("not a whole checkout: there is no BUILD")
    return _actual_targets()


_HINT = "run: python tests/build_test.py --print > BUILD"


def test_every_file_is_in_exactly_one_target(targets):
    listed = [src for target in targets for src in target.srcs if src != _TEST_MAIN]
    twice = sorted({src for src in listed if listed.count(src) > 1})
    assert not twice, f"{twice} are in more than one target; {_HINT}"
    expected = set(_python_files()) - {_TEST_MAIN}
    assert not expected - set(listed), f"not in BUILD; {_HINT}"
    assert not set(listed) - expected, f"in BUILD but not there; {_HINT}"


def test_every_target_has_the_rule_and_the_deps_of_its_file(targets):
    actual = {target.name: target for target in targets}
    assert len(actual) == len(targets)
    for expected in _expected_targets():
        assert actual.get(expected.name) == expected, _HINT


def test_file_is_formatted_and_sorted(targets):
    del targets  # Skips where there is no BUILD.
    assert _BUILD.read_text(encoding="utf-8") == _build_text(), _HINT


def test_imports_are_found_in_every_form():
    files = {"a/__init__.py", "a/b.py", "a/c/__init__.py", "a/c/d.py", "e.py"}
    source = (
        "import os, e\nfrom a import b, something\nfrom a.c import thing\n"
        "def f():\n  import a.c.d as d\n"
    )
    assert _imported_files(source, files) == files
    assert _imported_files("from a import b", files) == {"a/b.py"}
    with pytest.raises(ValueError, match="relative"):
        _imported_files("from . import b", files)


def _build_text() -> str:
    return "\n".join([_HEADER, *(target.format() for target in _expected_targets())])


if __name__ == "__main__":
    if sys.argv[1:] != ["--print"]:
        sys.exit("usage: python tests/build_test.py --print > BUILD")
    sys.stdout.write(_build_text())
