"""The README says what is true.

`python tests/readme_test.py` writes its tables anew.
"""

import pathlib
import re

import tasks
from tff_algos import registry
from tff_algos.simulation import report

_README = pathlib.Path(__file__).parents[1] / "README.md"
_TABLES = re.compile(r"(<!-- algorithms: [^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _tables() -> str:
    return report.markdown_tables(registry.ALGORITHMS.values(), tasks.TASKS.values())


def test_the_tables_are_the_registrys():
    assert _TABLES.search(_README.read_text())[2] == f"{_tables()}\n"


def test_every_file_that_it_names_is_there():
    links = re.findall(r"\]\((?!http)([^)]+)\)|--flagfile=(\S+)", _README.read_text())
    names = [name for pair in links for name in pair if name]
    assert len(names) >= 4
    for name in names:
        assert (_README.parent / name).exists(), name


if __name__ == "__main__":
    text = _TABLES.sub(lambda m: f"{m[1]}{_tables()}\n{m[3]}", _README.read_text())
    _README.write_text(text)
