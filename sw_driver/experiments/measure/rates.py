"""Rates of this machine: products by format, copies, kernel launches, and a drive.

Names of rates are settings of a machine where there is one, such as ``pcie.read_gb_per_s``. The
source of a rate says how it was measured: the best of some windows of time.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sw_driver.files import Unfinished
from sw_driver.machine.parts import Figure, measured

__all__ = ["best_s", "cpu_rates", "drive_rates", "filesystem", "gpu_rates", "memory_bytes"]

_WINDOWS, _WINDOW_S = 3, 0.1
SIZES = (512, 1024, 2048, 4096, 8192)
"""Sides of square products; larger ones are left out once a product takes a window of time."""
COPY_BYTES = 1 << 30
"""Bytes of a copy: more than a last-level cache has."""
_BLOCK_BYTES = 32 << 20
_DRIVE_S = 15
"""Time in which a drive is written, and in which it is read."""

_Work = Callable[[], object]


def memory_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def best_s(work: _Work, sync: _Work = lambda: None) -> float:
    """Return the shortest time of a call in s, of windows with several calls, after a first call.

    ``sync`` waits until work that the calls began is done.
    """
    work()
    sync()
    calls, times = 1, []
    while len(times) < _WINDOWS:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        sync()
        took = time.perf_counter() - start
        if took >= _WINDOW_S:
            times.append(took / calls)
        else:
            calls *= 2
    return min(times)


def _product(make: Callable[[int], _Work], sync: _Work) -> Figure:
    """Return the best rate of square products in 10^12 FLOP/s; ``make`` takes their side."""
    rates = []
    for size in SIZES:
        took_s = best_s(make(size), sync)
        rates.append((2 * size**3 / took_s / 1e12, size))
        if took_s >= _WINDOW_S:
            break
    rate, size = max(rates)
    return measured(rate, f"product of {size} x {size} x {size}")


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB"


def _copy(work: _Work, nbytes: int, source: str, sync: _Work = lambda: None) -> Figure:
    return measured(nbytes / best_s(work, sync) / 1e9, source)


def cpu_rates(torch: Any) -> dict[str, Figure]:
    """Return rates of cores and host memory, with PyTorch or, if it is None, with numpy."""
    kind: Any = torch or np
    count = min(COPY_BYTES, memory_bytes() // 8) // 4
    source, target = kind.ones(count, dtype=kind.float32), kind.ones(count, dtype=kind.float32)
    copy = partial(np.copyto, target, source) if torch is None else partial(target.copy_, source)
    words = f"copy of {_gib(4 * count)} with {kind.__name__}, reads and writes counted"
    rates = {"host.copy_gb_per_s": _copy(copy, 8 * count, words)}
    if torch is not None:
        formats = {"": torch.float32, "bf16_": torch.bfloat16}
        return {**_products(torch, "cpu", formats, lambda: None), **rates}

    def make(size: int) -> _Work:
        a = np.ones((size, size), np.float32)
        return partial(np.matmul, a, a, out=np.empty_like(a))

    return {"cpu.tflop_per_s": _product(make, lambda: None), **rates}


def _products(
    torch: Any, device: str, formats: Mapping[str, Any], sync: _Work
) -> dict[str, Figure]:
    """Return rates by setting of a device; ``formats`` maps beginnings of settings to formats."""
    rates, before = {}, torch.get_float32_matmul_precision()
    for name, dtype in formats.items():

        def make(size: int, dtype: Any = dtype) -> _Work:
            a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
            return partial(torch.mm, a, b, out=torch.empty_like(a))

        torch.set_float32_matmul_precision("high" if name == "tf32_" else "highest")
        part = "gpu" if device == "cuda" else device
        rates[f"{part}.{name}tflop_per_s"] = _product(make, sync)
    torch.set_float32_matmul_precision(before)
    return rates


def gpu_rates(torch: Any) -> dict[str, Figure]:
    """Return rates of the first GPU and of its link to the host, with pinned host memory."""
    sync = torch.cuda.synchronize
    properties = torch.cuda.get_device_properties(0)
    formats = {"": torch.float32, "fp16_": torch.float16}
    if properties.major >= 8:  # from Ampere on
        formats |= {"tf32_": torch.float32, "bf16_": torch.bfloat16}
    rates = _products(torch, "cuda", formats, sync)
    count = min(COPY_BYTES, properties.total_memory // 8)
    source, target = (torch.ones(count, dtype=torch.uint8, device="cuda") for _ in range(2))
    pinned = torch.ones(count // 4, dtype=torch.uint8, pin_memory=True)
    some = source[: count // 4]
    words = f"copy of {_gib(count)}, reads and writes counted"
    rates["gpu.gb_per_s"] = _copy(partial(target.copy_, source), 2 * count, words, sync)
    words = f"copy of {_gib(count // 4)} between pinned host memory and GPU"
    for name, (to, start) in {"read": (pinned, some), "write": (some, pinned)}.items():
        work = partial(to.copy_, start, non_blocking=True)
        rates[f"pcie.{name}_gb_per_s"] = _copy(work, count // 4, words, sync)
    launch_ns = round(best_s(partial(target[:1].add_, 1), sync) * 1e9)
    rates["gpu.launch_ns"] = measured(launch_ns, "additions of one element, one after the other")
    rates["gpu.multiprocessors"] = measured(properties.multi_processor_count, "as CUDA has it")
    rates["gpu.capacity_bytes"] = measured(properties.total_memory, "as CUDA has it")
    return rates


def filesystem(folder: Path) -> tuple[str, str]:
    """Return device and kind of the file system that a folder is on; empty if not known."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return "", ""
    mounts = [line.split()[:3] for line in reversed(lines)]
    above = [mount for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    device, _, kind = max(above, key=lambda mount: len(mount[1]))
    return device, kind


def drive_rates(folder: Path, nbytes: int) -> dict[str, Figure]:
    """Return rates at which a file in a folder is written and read again, in large blocks.

    The file has ``nbytes`` bytes, less on a slow or nearly full drive; it is removed. It goes
    past the page cache where the file system allows that; else the source says so.
    """
    usage = shutil.disk_usage(folder)
    limit = max(min(nbytes, usage.free // 2), _BLOCK_BYTES)
    block = mmap.mmap(-1, _BLOCK_BYTES)  # aligned, as O_DIRECT needs it
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    block.write(os.urandom(_BLOCK_BYTES))
    new = Unfinished(folder / "nearmem-measure")
    try:
        with new.named():
            file, is_direct = _opened(new.part)
            try:
                rates = _drive(file, block, limit, folder, is_direct)
            finally:
                os.close(file)
    finally:
        new.drop()
    rates["drive.capacity_bytes"] = measured(usage.total, "as the file system has it")
    return rates


def _opened(path: Path) -> tuple[int, bool]:
    """Return a new file, and whether it goes past the page cache."""
    flags = os.O_RDWR | os.O_CREAT
    try:
        return os.open(path, flags | os.O_DIRECT), True
    except AttributeError:  # not on Linux
        pass
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, flags), False


def _drive(
    file: int, block: mmap.mmap, limit: int, folder: Path, is_direct: bool
) -> dict[str, Figure]:
    rates = {}
    for name, move in {"write": os.pwritev, "read": os.preadv}.items():
        start, done = time.perf_counter(), 0
        while done < limit and time.perf_counter() - start < _DRIVE_S:
            done += move(file, [block], done)
        if name == "write":
            os.fsync(file)
        took_s, limit = time.perf_counter() - start, done
        if not is_direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        device, kind = filesystem(folder)
        words = f"{name}s of {_gib(done)} on {device} ({kind})"
        past = ", past the page cache" if is_direct else ", with the page cache in between"
        rates[f"drive.{name}_gb_per_s"] = measured(done / took_s / 1e9, words + past)
    return rates
