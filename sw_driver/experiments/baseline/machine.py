"""What the operating system says about this machine."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "this_machine"]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that the baseline runs on."""

    cpu: str
    cores: int
    """That this process may use."""
    last_level_cache_bytes: int
    """The largest size that the operating system gives for a cache; 0 if it gives none."""
    available_bytes: int
    """Memory that can be used now; 0 if it is not known."""
    load: float
    """Running processes, averaged over the last minute; this one not before it has begun."""


def _cpu() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _bytes(size: str) -> int:
    text = size.strip()
    unit = _UNITS.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * unit if digits.isdigit() else 0


def _last_level_cache_bytes() -> int:
    # In a virtual machine the two sources can differ: a core's share, and all that the host has.
    sizes = [0]
    if _CACHES.exists():
        sizes += [_bytes(path.read_text()) for path in _CACHES.glob("index*/size")]
    with suppress(OSError):
        for level in (2, 3, 4):
            done = subprocess.run(
                ["getconf", f"LEVEL{level}_CACHE_SIZE"], capture_output=True, text=True, check=False
            )
            sizes.append(_bytes(done.stdout))
    return max(sizes)


def _available_bytes() -> int:
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def this_machine() -> Machine:
    """The machine as it is now."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(
        cpu=_cpu(),
        cores=cores or 1,
        last_level_cache_bytes=_last_level_cache_bytes(),
        available_bytes=_available_bytes(),
        load=os.getloadavg()[0],
    )
