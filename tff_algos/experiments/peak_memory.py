"""How much memory this process has taken."""

import pathlib
import re
import resource
import sys

_STATUS = pathlib.Path("/proc/self/status")


def peak_bytes() -> int:
    """Returns the most memory that this process has held at a time.

    `resource` would include the peak of the process that started this one: a run that is
    started from a large Jupyter kernel would seem as large.
    """
    if _STATUS.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
