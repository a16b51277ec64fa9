"""Names of columns are read before any run."""

import pytest

from tff_algos.experiments.comparison import column_names
from tff_algos.experiments.comparison.errors import ComparisonError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rounds_to:0.9", ("rounds_to", "0.9")),
        ("rounds_to:1", ("rounds_to", "1")),
        ("final:eval/accuracy", ("final", "eval/accuracy")),
        ("best:a:b", ("best", "a:b")),
        ("seconds", ("seconds", "seconds")),
        ("excluded.num_empty_clients", ("summary", "excluded.num_empty_clients")),
    ],
)
def test_a_name_has_a_kind_and_an_argument(name, expected):
    assert column_names.parse(name) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rounds_to:90", "--columns=rounds_to:90: expected an accuracy in"),
        ("rounds_to:nan", "--columns=rounds_to:nan: expected an accuracy in"),
        ("rounds_to:", "--columns=rounds_to:: expected an accuracy in"),
        ("last:", "--columns=last:: expected rounds_to:ACC, final:METRIC, last:"),
        ("lst:eval/loss", "--columns=lst:eval/loss: expected rounds_to:ACC, final:"),
    ],
)
def test_other_names_are_errors_that_say_what_there_is(name, message):
    with pytest.raises(ComparisonError, match=message):
        column_names.parse(name)
