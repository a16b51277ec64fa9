"""Which tests are quick, which CI runs besides, and which only `make test-slow`.

Tests differ by a factor of thousands in what they take, nearly all of it compilation.
`tests/durations.tsv` has the seconds of those that are not quick, as `make durations`
measured them; the markers follow from it:

    (none)      `make test`: all that is quick
    extended    CI as well: one case, the quickest, of each claim without a quick one
    slow        `make test-slow` alone: what repeats a claim, or takes long

A test that says itself that it is slow is slow, whatever it takes.
"""

import collections
import pathlib

import pytest

_FILE = pathlib.Path(__file__).parents[1] / "durations.tsv"
# Seconds on one of two cores: up to the first a test is quick, beyond the second slow.
_QUICK, _LONGEST_IN_CI = 0.6, 15.0
# Less is not written down.
_RECORDED = 0.5


def _recorded() -> dict[str, float]:
    lines = _FILE.read_text().splitlines() if _FILE.exists() else []
    pairs = (line.split("\t", 1) for line in lines)
    return {name: float(seconds) for seconds, name in pairs}


def tiers(names: list[str], seconds: dict[str, float]) -> dict[str, str]:
    """Returns the marker of every test that is not quick.

    Args:
      names: All tests, as pytest names them.
      seconds: What they take, of those that are not quick.
    """
    cases = collections.defaultdict(list)
    for name in names:
        cases[name.partition("[")[0]].append(name)
    found = {}
    for claim in cases.values():
        took = {name: seconds.get(name, 0.0) for name in claim}
        quickest = min(claim, key=took.get)
        for name in claim:
            if took[name] > _QUICK:
                in_ci = name == quickest and took[name] <= _LONGEST_IN_CI
                found[name] = "extended" if in_ci else "slow"
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that are not quick."""
    declared = {item.nodeid for item in items if item.get_closest_marker("slow")}
    names = [item.nodeid for item in items if item.nodeid not in declared]
    marks = tiers(names, _recorded())
    for item in items:
        if item.nodeid in marks:
            item.add_marker(getattr(pytest.mark, marks[item.nodeid]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that records."""
    parser.addoption(
        "--record_durations",
        action="store_true",
        help=f"Write {_FILE.name} anew; run all tests with it.",
    )


def _exists(name: str) -> bool:
    file, *_, function = name.partition("[")[0].split("::")
    path = _FILE.parents[1] / file
    return path.is_file() and f"def {function}(" in path.read_text()


class _Recorder:
    """Adds up what each test takes, its set-up included."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = collections.Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        slowest = {k: v for k, v in self._seconds.items() if v >= _RECORDED}
        # Of cases that this run left out, unless the test is no more.
        kept = filter(_exists, _recorded().keys() - self._seconds.keys())
        rows = slowest | {name: _recorded()[name] for name in kept}
        _FILE.write_text(
            "".join(
                f"{seconds:.1f}\t{name}\n" for name, seconds in sorted(rows.items())
            )
        )


def pytest_configure(config: pytest.Config) -> None:
    """Records where that is asked for, in the process that hears of all tests."""
    if config.getoption("--record_durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder())
