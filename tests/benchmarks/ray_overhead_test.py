"""The table of rounds with clients in Ray workers."""

import pytest

from benchmarks import ray_overhead
from benchmarks.ray_overhead import Measured


def test_rows_have_medians_and_megabytes():
    here = Measured([0.5, 0.25, 0.375])
    there = Measured([2.0], sent=1_500_000, received=20_000, worker_seconds=0.75)
    lines = ray_overhead.table({"W1": {"one process": here, "1 Ray worker": there}})
    assert lines.splitlines()[2:] == [
        "| W1 | one process | 0.375 (0.25-0.5) |  |  |  |",
        "| W1 | 1 Ray worker | 2 (2-2) | 1.5 | 0.02 | 0.75 |",
    ]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--workloads=W1,W99", "'W99' is not one of W1, W2"),
        ("--workers=1,x", "--workers: 'x' is not a whole number >= 1"),
        ("--workers=0", "--workers: '0' is not a whole number >= 1"),
        ("--rounds=0", "--rounds: 0 is not >= 1"),
    ],
)
def test_a_bad_flag_is_named_before_ray_starts(flag, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["ray_overhead.py", flag])
    with pytest.raises(SystemExit):
        ray_overhead.main()
    assert message in capsys.readouterr().err
