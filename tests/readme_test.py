"""The README says what is true.

`python tests/readme_test.py` writes its tables anew.
"""

import pathlib
import re
import shlex

import pytest

from tests.testing.command_line import SMALL, run_apart
from tff_algos.experiments import plugins, report

_README = pathlib.Path(__file__).parents[1] / "README.md"
_PAGES = [_README, *sorted((_README.parent / "docs").glob("*.md"))]
_TABLES = re.compile(r"(<!-- algorithms: [^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _tables() -> str:
    declared = plugins.declare(plugins.own())
    return report.markdown_tables(declared.algorithms.values(), declared.all_tasks)


def test_the_tables_are_the_catalogs():
    assert _TABLES.search(_README.read_text())[2] == f"{_tables()}\n"


def test_every_file_that_it_names_is_there():
    links = re.findall(r"\]\((?!http)([^)]+)\)|--flagfile=(\S+)", _README.read_text())
    names = [name for pair in links for name in pair if name]
    assert len(names) >= 4
    for name in names:
        assert (_README.parent / name).exists(), name


def _commands() -> list[str]:
    """Every call of main.py that stands on a line of its own, whole.

    But for Ray's, which need clusters and GPUs; tests/experiments/cli_test.py runs one.
    """
    text = "\n".join(page.read_text() for page in _PAGES)
    calls = re.compile(r"^\S*python main\.py ([^`\n]*)$", re.MULTILINE)
    found = calls.findall(text.replace("\\\n", ""))
    calls = dict.fromkeys(" ".join(call.split()) for call in found)
    return [call for call in calls if "--runtime=ray" not in call]


def _shortened(command: str) -> list[str]:
    """Returns the arguments of a call, and those that make it short."""
    by_stage = "reptile" in command
    short = [flag for flag in SMALL if not (by_stage and "total_rounds" in flag)]
    if by_stage:
        short += ["--pretrain_rounds=1", "--finetune_rounds=1"]
    return [*shlex.split(command), *short, "--max_elements_per_client=20"]


# Where an attack has to fit the cohort; the others repeat what other tests run.
_FAST = ("--attack",)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            command,
            marks=() if any(f in command for f in _FAST) else pytest.mark.slow,
        )
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
    assert any("--nomalicious_every_round" in command for command in commands)


if __name__ == "__main__":
    text = _TABLES.sub(lambda m: f"{m[1]}{_tables()}\n{m[3]}", _README.read_text())
    _README.write_text(text)
