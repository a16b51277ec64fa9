"""Describes the machine that the measurements depend on."""

import os
import pathlib
import platform

import psutil


def describe() -> dict[str, object]:
    """Returns a description of the machine and the software."""
    return {
        "cores": os.cpu_count(),
        "memory_megabytes": psutil.virtual_memory().total // 2**20,
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
