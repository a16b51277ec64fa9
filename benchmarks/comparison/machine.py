"""Describes the machine that the measurements depend on."""

import pathlib
import platform
from collections.abc import Mapping

import psutil

from tff_algos import cpus

_CPUINFO = pathlib.Path("/proc/cpuinfo")


def describe() -> dict[str, object]:
    """Returns a description of the machine and the software."""
    return {
        "cores": cpus.count(),
        "memory_megabytes": psutil.virtual_memory().total // 2**20,
        **_processor(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def _processor() -> dict[str, object]:
    if _CPUINFO.exists():
        return parse_cpuinfo(_CPUINFO.read_text(encoding="utf-8"))
    return {"processor": platform.processor() or platform.machine()}


def parse_cpuinfo(text: str) -> dict[str, object]:
    """Returns the processor's name and whether it has AVX2 and AVX-512.

    Virtual machines may hide the model: the name may be as short as "AMD EPYC".

    Args:
      text: The content of /proc/cpuinfo. Without flags (not x86), only the name.
    """
    fields = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    found = {"processor": fields.get("model name") or platform.machine()}
    if "flags" in fields:
        flags = fields["flags"].split()
        found |= {"avx2": "avx2" in flags, "avx512": "avx512f" in flags}
    return found


def processor_line(described: Mapping[str, object]) -> str:
    """Returns the processor of `describe()` in words."""
    words = [str(described["processor"])]
    for key, name in (("avx2", "AVX2"), ("avx512", "AVX-512")):
        if key in described:
            words.append(f"{name}: {'yes' if described[key] else 'no'}")
    return ", ".join(words)
