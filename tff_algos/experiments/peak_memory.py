"""How much memory this process has taken."""

import pathlib
import re
import resource

_STATUS = pathlib.Path("/proc/self/status")


def peak_bytes() -> int:
    """Returns the most memory that this process has held at a time.

    `resource` would count what the process held that started this one: a run that a large
    Jupyter kernel starts would seem as large.
    """
    if _STATUS.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
