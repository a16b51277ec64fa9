"""README and docs say what is true.

`python -m tests.readme_test` writes the tables of algorithms and tasks anew.
"""

import pathlib
import re
import shlex

import pytest

from tests.testing.command_line import SMALL, run_apart
from tff_algos.experiments import declarations, plugins, report
from tff_algos.experiments.comparison import columns, compare
from tff_algos.experiments.comparison import rows as rows_lib

_ROOT = pathlib.Path(__file__).parents[1]
_ALGORITHMS = _ROOT / "docs" / "algorithms.md"
_PAGES = [
    *(_ROOT / name for name in ("README.md", "CONTRIBUTING.md", "presets/README.md")),
    *sorted((_ROOT / "docs").rglob("*.md")),
]
_TABLES = re.compile(r"(<!-- algorithms: [^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _tables() -> str:
    declared = plugins.declare(plugins.own())
    return report.markdown_tables(declared.algorithms.values(), declared.all_tasks)


def test_the_tables_are_the_catalogs():
    assert _TABLES.search(_ALGORITHMS.read_text())[2] == f"{_tables()}\n"


def _anchors(page: pathlib.Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t).lower().replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link
    for name in re.findall(r"--flagfile=([^\s*'`]+)", page.read_text()):
        assert (_ROOT / name).exists(), name


def test_pages_are_found():
    names = {page.name for page in _PAGES}
    assert {"README.md", "runs.md", "gradma.md"} <= names and len(names) > 15


def test_every_page_is_in_the_site():
    site = (_ROOT / "tools" / "site" / "mkdocs.yml").read_text()
    for page in (_ROOT / "docs").rglob("*.md"):
        assert f": {page.relative_to(_ROOT / 'docs')}\n" in site


def _calls() -> list[str]:
    """Every call of main.py that stands on a line of its own, whole."""
    text = "\n".join(page.read_text() for page in _PAGES)
    calls = re.compile(r"^\S*python main\.py ([^`\n]*)$", re.MULTILINE)
    found = calls.findall(text.replace("\\\n", ""))
    calls = dict.fromkeys(" ".join(call.split()) for call in found)
    return list(calls)


def _commands() -> list[str]:
    """Every run.

    But for Ray's, which need clusters and GPUs; tests/experiments/cli_test.py runs one.
    """
    return [
        call
        for call in _calls()
        if "--runtime=ray" not in call and not call.startswith("compare ")
    ]


def _comparisons() -> list[str]:
    return [call for call in _calls() if call.startswith("compare ")]


@pytest.mark.parametrize("command", _comparisons())
def test_every_comparison_has_rows(command, monkeypatch):
    monkeypatch.chdir(_ROOT)
    _, *words = shlex.split(command)
    values, contenders, common = compare.parse(words)
    what = declarations.load()
    rows = rows_lib.make_rows(contenders, common, values.grid, what)
    assert len(rows) > 1
    assert all(map(columns.parse_column, values.columns))


def _shortened(command: str) -> list[str]:
    """Returns the arguments of a call, and those that make it short."""
    by_stage = "reptile" in command
    short = [flag for flag in SMALL if not (by_stage and "total_rounds" in flag)]
    if by_stage:
        short += ["--pretrain_rounds=1", "--finetune_rounds=1"]
    return [*shlex.split(command), *short, "--max_elements_per_client=20"]


def _tier(command: str) -> pytest.MarkDecorator:
    # An attack has to fit the cohort; the others repeat what other tests run.
    return pytest.mark.extended if "--attack" in command else pytest.mark.slow


# pytest numbers the parameters that are longer than this, so durations would be lost.
_LONGEST_ID = 90


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=_tier(command), id=command[:_LONGEST_ID])
        for command in _commands()
    ],
)
def test_every_command_runs(tmp_path, command):
    run = tmp_path / "run"
    done = run_apart(tmp_path, *_shortened(command), f"--output_dir={run}")
    assert done.status == 0, done.err
    assert (run / "summary.json").exists()


def test_the_commands_are_found():
    commands = _commands()
    assert len(commands) >= 4
    assert len(_comparisons()) >= 3
    assert any("--nomalicious_every_round" in command for command in commands)


if __name__ == "__main__":
    text = _TABLES.sub(lambda m: f"{m[1]}{_tables()}\n{m[3]}", _ALGORITHMS.read_text())
    _ALGORITHMS.write_text(text)
