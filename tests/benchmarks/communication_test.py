"""The table of what an algorithm's clients and server send."""

import pathlib
import subprocess
import sys

import pytest

_PROGRAM = pathlib.Path(__file__).parents[2] / "benchmarks" / "communication.py"


@pytest.mark.slow
def test_what_is_sent_is_measured_in_models():
    done = subprocess.run(
        [
            sys.executable,
            str(_PROGRAM),
            "--algorithms=fedavg,scaffold,local,centralized",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [
        [cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines()
    ]
    found = {row[1]: row[-3:-1] for row in rows[2:]}
    assert found == {
        "fedavg": ["1.00", "1.00"],
        "scaffold": ["2.00", "2.00"],
        "local": ["1.00", "0.00"],
        "centralized": ["0.00", "0.00"],
    }
