"""Errors of comparisons name the flag, its value and what is valid."""

from tff_algos.experiments.comparison.errors import ComparisonError, flag_error
from tff_algos.experiments.errors import RunError


def test_an_error_of_a_flag_is_one_line_that_the_command_line_shows():
    error = flag_error("grid", "x", "name=value,value")
    assert str(error) == "--grid=x: expected name=value,value."
    assert isinstance(error, ComparisonError) and isinstance(error, RunError)
