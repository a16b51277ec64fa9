"""Numbers and tables as text."""

import math

import pytest

from tff_algos.experiments.comparison import formats


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (0.0012345, "0.00123"),
        (1.0, "1.00"),
        (12.345, "12.3"),
        (12345.6, "12346"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_have_three_digits_at_least(value, expected):
    assert formats.number(value) == expected


def test_tables_are_aligned_markdown():
    table = formats.table(["", "loss"], [["fedavg", "1"], ["uga", "0.25"]])
    assert table.splitlines() == [
        "|        | loss |",
        "| ------ | ---: |",
        "| fedavg |    1 |",
        "| uga    | 0.25 |",
    ]
