"""Writes the BUILD files: `make build-file`, or `python -m tests.testing.build_files`.

Every folder with Python files has one, where each file is a target named after it, and
an `__init__.py` one named after the folder. A target's deps are what its file imports,
its data what the file names in a path.
"""

import ast
import fnmatch
import pathlib
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

ROOT = pathlib.Path(__file__).parents[2]

# All BUILD files in these are written here; others would be removed.
_FOLDERS = ("benchmarks", "tasks", "tests", "tff_algos")
_BINARIES = ("main.py",)

# Runs a test file with pytest; the one file that many targets share.
_TEST_MAIN = "tests/pytest_main.py"

# Other files and folders that Python files read, with what those refer to in turn.
_DATA = {
    "CHANGELOG.md": (),
    "CONTRIBUTING.md": (),
    "LICENSE": (),
    "README.md": (
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "docs",
        "notebooks",
        "presets",
    ),
    "benchmarks/requirements": (),
    "docs": (),
    "notebooks": (),
    "presets": (),
    "pyproject.toml": (),
    "requirements-gpu.txt": (),
    "requirements-ray.txt": (),
    "requirements.txt": (),
    _TEST_MAIN: (),
    "tests/durations.tsv": (),
    "tff_algos/experiments/declarations.json": (),
}

# Python files that others run although they neither import them nor name their paths.
_RUN_BY = {
    "benchmarks/runtimes.py": ("benchmarks/engines/run_*.py",),
    "tests/benchmarks/communication_test.py": ("benchmarks/communication.py",),
    "tests/notebooks_test.py": (
        "tasks/__init__.py",
        "tests/testing/notebook_cells.py",
    ),
    "tff_algos/compat.py": (
        "tff_algos/autograph.py",
        "tff_algos/execution/default_context.py",
    ),
}

_HEADER = """\
# Written by `make build-file`. A target is named after its file.

package(default_visibility = ["//visibility:public"])
"""


class _Checkout:
    """The files below a folder, by their paths from there, and their targets."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        paths = [root / name for name in _BINARIES if (root / name).exists()]
        for folder in _FOLDERS:
            paths += (root / folder).rglob("*.py")
        found = {path.relative_to(root).as_posix() for path in paths}
        self._data = {path for path in _DATA if (root / path).exists()}
        self._files = found - self._data
        self.packages = {_folder(path) for path in self._files} | {""}
        self._sources = {path: (root / path).read_text("utf-8") for path in self._files}
        self._imports = {
            path: imported_files(source, self._files) - {path}
            for path, source in self._sources.items()
        }
        # Of the packages that each file is in, but for those that import nothing.
        self._inits = {
            path: {
                init
                for init in self._beside_parents(path, "__init__.py")
                if self._imports[init]
            }
            for path in self._files
        }

    def build_file(self, package: str) -> str:
        """Returns the content of a package's BUILD file."""
        data = [path for path in sorted(self._data) if _folder(path) == package]
        exported = [_name(path) for path in data if (self._root / path).is_file()]
        rules = [f"exports_files({_list(exported, 4)})\n"] if exported else []
        for path in data:
            if (self._root / path).is_dir():
                rules.append(_filegroup(_name(path)))
        files = sorted(path for path in self._files if _folder(path) == package)
        rules += [self._target(path) for path in files]
        return "\n".join([_HEADER, *rules])

    def _target(self, path: str) -> str:
        package = _folder(path)
        rule, srcs, main = "py_library", [_name(path)], ""
        deps = self._imports[path]
        if path.endswith("_test.py"):
            rule, main = "py_test", self._label(_TEST_MAIN, package)
            srcs.append(main)
            deps = self._with_packages(deps | self._beside_parents(path, "conftest.py"))
        elif path in _BINARIES:
            rule = "py_binary"
            deps = self._with_packages(deps)
        data = self._read_files(path) - deps - {path}
        return _rule(
            rule,
            name=_quoted(self._target_name(path)),
            srcs=_list(srcs),
            data=self._labels(data, package),
            main=_quoted(main) if main else "",
            deps=self._labels(deps, package),
        )

    def _beside_parents(self, path: str, name: str) -> set[str]:
        """Returns the files of a name that are in any of the folders that `path` is in."""
        folders = PurePosixPath(path).parents
        found = {str(folder / name) for folder in folders}
        return (found & self._files) | (found & self._data)

    def _with_packages(self, deps: set[str]) -> set[str]:
        """Returns a program's deps with the `__init__.py`s that Python runs for them.

        Libraries cannot have these: they would depend on each other in circles. Bazel
        puts an empty file where a program does not depend on the package's own.
        """
        while True:
            reached = self._reached(deps)
            missing = set().union(*(self._inits[path] for path in reached)) - reached
            if not missing:
                return deps
            # Outer packages first: they import the inner ones.
            deps = deps | {min(missing, key=lambda path: (path.count("/"), path))}

    def _reached(self, paths: set[str]) -> set[str]:
        """Returns the files with all that they import, directly or not."""
        reached, left = set(), set(paths)
        while left:
            path = left.pop()
            reached.add(path)
            left |= self._imports[path] - reached
        return reached

    def _read_files(self, path: str) -> set[str]:
        """Returns what a file reads or runs, whether it imports that or not."""
        read = set()
        for name in names_in_paths(self._sources[path]):
            read |= self._beside_parents(path, name)
        for name in read & self._data:
            read |= self._data.intersection(_DATA[name])
        for pattern in _RUN_BY.get(path, ()):
            read.update(fnmatch.filter(self._files, pattern))
        return read

    def _target_name(self, path: str) -> str:
        if path in self._data:
            return _name(path)
        folder, name = _folder(path), _name(path).removesuffix(".py")
        taken = f"{folder}/{_name(folder)}.py" in self._files
        return _name(folder) if name == "__init__" and not taken else name

    def _label(self, path: str, package: str) -> str:
        of, name = _folder(path), self._target_name(path)
        if of == package:
            return f":{name}"
        return f"//{of}" if name == _name(of) else f"//{of}:{name}"

    def _labels(self, paths: Iterable[str], package: str) -> str:
        labels = (self._label(path, package) for path in paths)
        return _list(sorted(labels, key=_label_order))


def imported_files(source: str, files: set[str]) -> set[str]:
    """Returns which of the files a Python source imports."""
    found = set()
    for module, name in _imported_modules(source):
        # `from a import b`: b is a module of its own, or else in a's.
        submodule = name and _module_file(f"{module}.{name}", files)
        found.add(submodule or _module_file(module, files))
    return found - {None}


def _imported_modules(source: str) -> Iterator[tuple[str, str | None]]:
    """Yields (module, name that is imported from it, if any) for each import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"Line {node.lineno}: a relative import.")
            yield from ((node.module, alias.name) for alias in node.names)


def _module_file(module: str, files: set[str]) -> str | None:
    """Returns the file of a dotted name; `None` if it is not one of ours."""
    path = module.replace(".", "/")
    for candidate in (f"{path}.py", f"{path}/__init__.py"):
        if candidate in files:
            return candidate
    return None


def names_in_paths(source: str) -> Iterator[str]:
    """Yields what a Python source appends to paths, as in `folder / "name"`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BinOp(left=ast.Name(id="tmp_path")):
                pass  # A test's own folder has none of our files.
            case ast.BinOp(op=ast.Div(), right=ast.Constant(value=str(name))):
                yield name
            case ast.Call(
                func=ast.Attribute(attr="with_name"),
                args=[ast.Constant(value=str(name))],
            ):
                yield name


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _label_order(label: str) -> tuple[bool, list[str]]:
    """Returns the key by which buildifier, Bazel's formatter, sorts labels."""
    return label.startswith("//"), re.split("[.:]", label)


def _quoted(value: str) -> str:
    return f'"{value}"'


def _list(values: list[str], indent: int = 8) -> str:
    """Returns a list in Starlark; nothing if it is empty."""
    if len(values) <= 1:
        return "".join(f"[{_quoted(value)}]" for value in values)
    margin = " " * indent
    lines = [f"{margin}{_quoted(value)}," for value in values]
    return "\n".join(["[", *lines, f"{margin[4:]}]"])


def _rule(rule: str, **arguments: str) -> str:
    """Returns a rule in Starlark, with those arguments that are not empty."""
    lines = [f"    {key} = {value}," for key, value in arguments.items() if value]
    return "\n".join([f"{rule}(", *lines, ")\n"])


def _filegroup(folder: str) -> str:
    srcs = f'glob(["{folder}/**"])'
    return _rule("filegroup", name=_quoted(folder), srcs=srcs)


def expected(root: pathlib.Path) -> dict[str, str]:
    """Returns what every BUILD file below `root` should be, by its path from there."""
    checkout = _Checkout(root)
    return {
        str(PurePosixPath(package, "BUILD")): checkout.build_file(package)
        for package in sorted(checkout.packages)
    }


def actual(root: pathlib.Path) -> dict[str, str]:
    """Returns the BUILD files that there are, as `expected` does."""
    paths = [root / "BUILD"] if (root / "BUILD").exists() else []
    for folder in _FOLDERS:
        paths += sorted((root / folder).rglob("BUILD"))
    return {p.relative_to(root).as_posix(): p.read_text("utf-8") for p in paths}


def out_of_date(root: pathlib.Path) -> dict[str, str]:
    """Returns which BUILD files have to be written or removed, and why."""
    return _differences(actual(root), expected(root))


def _differences(there: dict[str, str], needed: dict[str, str]) -> dict[str, str]:
    wrong = {path: "has no Python files" for path in there.keys() - needed.keys()}
    for path, content in needed.items():
        if path not in there:
            wrong[path] = "is missing"
        elif there[path] != content:
            wrong[path] = "is not what the Python files import and read"
    return dict(sorted(wrong.items()))


def write(root: pathlib.Path) -> None:
    """Writes or removes the BUILD files that are out of date."""
    needed = expected(root)
    for path in _differences(actual(root), needed):
        if path in needed:
            (root / path).write_text(needed[path], encoding="utf-8")
        else:
            (root / path).unlink()
        print("wrote" if path in needed else "removed", path)


if __name__ == "__main__":
    write(ROOT)
