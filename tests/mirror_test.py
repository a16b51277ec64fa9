"""Every module has a test file of its own, where a reader looks for it."""

import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[1]

# Modules without a test file of their own, each with the reason.
_EXCEPTIONS = {
    "tff_algos/experiments/errors.py": "Names alone; who raises them tests them.",
    "tff_algos/experiments/metric_names.py": "Names alone; who writes them tests them.",
    "tff_algos/experiments/__main__.py": "Calls cli.main; comparisons run it.",
}


def _test_of(module: str) -> str:
    """Returns where the tests of a module belong, by its path."""
    path = pathlib.PurePosixPath(module.removeprefix("tff_algos/"))
    return str("tests" / path.with_name(f"{path.stem}_test.py"))


def _modules() -> list[str]:
    found = [
        path.relative_to(_ROOT).as_posix()
        for folder in ("tff_algos", "tasks")
        for path in (_ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    ]
    return sorted(found)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("tff_algos/algorithms/scaffold.py", "tests/algorithms/scaffold_test.py"),
        ("tff_algos/hyperparameters.py", "tests/hyperparameters_test.py"),
        ("tasks/models/text.py", "tests/tasks/models/text_test.py"),
    ],
)
def test_a_test_file_is_named_after_its_module(module, expected):
    assert _test_of(module) == expected


@pytest.fixture
def modules():
    found = _modules()
    if not found:
        pytest.skip("not a whole checkout: there are no packages")
    return found


def test_every_module_has_a_test_file_of_its_own(modules):
    missing = {
        module: _test_of(module)
        for module in modules
        if module not in _EXCEPTIONS and not (_ROOT / _test_of(module)).exists()
    }
    lines = [f"{module} has no {test}" for module, test in missing.items()]
    assert not missing, "\n".join(lines)


def test_no_exception_is_out_of_date(modules):
    for module in _EXCEPTIONS:
        assert module in modules, f"{module} is gone"
        assert not (_ROOT / _test_of(module)).exists(), f"{module} has a test"
