"""Errors that a user can fix, each with a one-line message."""


class RunError(Exception):
    """A run cannot start or continue; the message says why and what to do."""


class CohortSizeError(RunError):
    """More clients per round are requested than there are."""


class ResumeError(RunError):
    """The output folder holds another run, or a broken one."""


class OutputError(RunError):
    """The output folder cannot be written."""


class ModelFileError(RunError):
    """A run's folder holds no such model, or a damaged one."""


class FolderInUseError(RunError):
    """Another run writes to the output folder."""
