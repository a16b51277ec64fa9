"""What a user can mend of a comparison."""

from tff_algos.experiments.errors import RunError


class ComparisonError(RunError):
    """A comparison cannot be made as requested; the message is one line."""


def flag_error(flag: str, value: object, expected: str) -> ComparisonError:
    """Returns the error for an unexpected value of a flag."""
    return ComparisonError(f"--{flag}={value}: expected {expected}.")
