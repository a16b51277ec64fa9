"""The processors that this process may use."""

import functools
import os
import pathlib
import re

# Linux's name of the first processor's level-2 cache.
_LEVEL_2 = pathlib.Path("/sys/devices/system/cpu/cpu0/cache/index2/size")
_USUAL_LEVEL_2_BYTES = 512 * 1024


def count() -> int:
    """Returns their number."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def level_2_cache_bytes() -> int:
    """Returns the size of a core's level-2 cache, or 512 KiB where it is not told."""
    try:
        size = re.fullmatch(r"(\d+)K\n?", _LEVEL_2.read_text())
    except OSError:
        size = None
    return int(size[1]) * 1024 if size else _USUAL_LEVEL_2_BYTES
