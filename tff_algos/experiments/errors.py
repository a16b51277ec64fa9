"""Errors that a user can mend, each a single line."""


class RunError(Exception):
    """A run cannot start or go on; the message says why and what to do."""


class CohortSizeError(RunError):
    """More clients are asked for per round than there are."""


class ResumeError(RunError):
    """The output folder holds another run, or a broken one."""


class OutputError(RunError):
    """The output folder cannot be written."""


class FolderInUseError(RunError):
    """Another run writes to the output folder."""
