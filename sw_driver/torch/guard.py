"""The compiled guard of memory plans: built at first use, loaded, and called by ctypes.

``guard.cpp`` decides which operators a residency's dispatch mode must see; ``guard_memory.h``
counts PyTorch's memory on CPUs at the allocator. Where they cannot be built, the mode sees every
operator.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

from sw_driver.simulator.buildcache import cached_build, content_key
from sw_driver.simulator.progress import build_progress
from sw_driver.workload.writes import HIDDEN_WRITES

from .step import unwatched

__all__ = [
    "AWAY",
    "FAILED",
    "KEPT",
    "NEVER",
    "RESULTS",
    "Account",
    "Guard",
    "State",
    "answering",
    "load",
]

SOURCES = [Path(__file__).with_name(name) for name in ("guard.cpp", "guard_memory.h")]

FLAGS = "-O2", "-std=c++20", "-shared", "-fPIC", "-Wall"

AWAY = 1
"""Flag of a storage that is not in fast memory, or still comes."""
KEPT = 2
"""Flag of a storage with copies elsewhere, which a write makes stale."""

RESULTS, FAILED = 2, 3
"""Reasons of the guard to stop: other results than the script has, or an error."""

NEVER = 2**63 - 1

_ABOUT = "the guard of memory plans"

_NAME = "libguard.so"

ANSWER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)


class Account(ctypes.Structure):
    """Counts of a residency's bytes, shared with the allocator."""

    used: int
    """Bytes in fast memory."""
    peak: int
    most_live: int
    """Peak of bytes in fast memory and away."""
    high: int
    """Peak since Python has set it."""
    away: int
    limit: int
    least: int
    """Smaller blocks are not counted."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int64) for name in ("used", "peak", "most_live", "high")),
        *((name, ctypes.c_int64) for name in ("away", "limit", "least")),
        ("ask", ANSWER),
    ]


class State(ctypes.Structure):
    """State of the step that the guard follows; ``guard.cpp`` describes the fields."""

    number: int
    wakes_at: int
    skipped: int
    scripted: int
    recording: int
    inside: int
    orphans: int
    diverged: int

    _fields_: ClassVar = [
        *((name, ctypes.c_int64) for name in ("number", "wakes_at", "skipped")),
        *(
            (name, ctypes.c_int32)
            for name in ("scripted", "recording", "inside", "orphans", "diverged")
        ),
    ]


class Guard:
    """The loaded library. A storage goes by its number, ``_cdata``."""

    def __init__(self, path: Path) -> None:
        torch.ops.load_library(path)
        library = ctypes.PyDLL(str(path))  # keeps Python's lock, as the calls are short
        number, pointer, integer = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
        numbers, slots = ctypes.POINTER(number), ctypes.POINTER(ctypes.c_int32)
        calls: dict[str, tuple[Any, ...]] = {
            "state": (ctypes.POINTER(State),),
            "install": (integer,),
            "hide": (None, ctypes.c_char_p, ctypes.c_char_p),
            "account": (ctypes.POINTER(Account), number, ANSWER),
            "keep": (None, integer),
            "count": (pointer, pointer),
            "adopt": (integer, pointer, pointer),
            "add": (None, pointer, number),
            "fill": (integer, pointer, pointer, number),
            "own": (None, pointer, pointer),
            "track": (None, pointer, number, integer),
            "flag": (None, pointer, integer),
            "untrack": (None, pointer),
            "see": (None, pointer, integer),
            "at": (number, integer),
            "begin": (None,),
            "save": (integer, number, number, numbers, number),
            "drop": (None, number),
            "follow": (integer, number, number, numbers, number),
            "list": (number, integer, numbers, slots, number),
            "is_orphan": (integer, pointer),
            "in_use": (number, numbers, number),
            "forked": (None,),
        }
        for name, (result, *arguments) in calls.items():
            function = getattr(library, f"guard_{name}")
            function.restype, function.argtypes = result, arguments
        self.call: Any = SimpleNamespace(
            **{name: getattr(library, f"guard_{name}") for name in calls}
        )
        """Functions of the library by their names in ``guard.cpp``, without ``guard_``."""
        with TorchDispatchMode():
            if self.call.install():
                raise OSError("PyTorch has an allocator or a mode that the guard cannot precede")
        self.state: State = self.call.state().contents
        for name, arguments in HIDDEN_WRITES.items():
            full_name = name if "::" in name else f"aten::{name}"
            for argument in arguments:
                self.call.hide(full_name.encode(), argument.encode())
        os.register_at_fork(after_in_child=self.call.forked)

    def storages(self, *, orphans: bool) -> list[tuple[int, int]]:
        """Return storages and their slots: those without a record, or all of this step."""
        size = 1 << 12
        while True:
            numbers, slots = (ctypes.c_int64 * size)(), (ctypes.c_int32 * size)()
            count = self.call.list(orphans, numbers, slots, size)
            if count <= size:
                return [*zip(numbers[:count], slots[:count], strict=True)]
            size = count

    def save(self, script: int, operations: int, nbytes: list[int]) -> bool:
        """Keep the recorded step as a script; return whether it is whole."""
        sizes = (ctypes.c_int64 * len(nbytes))(*nbytes)
        return not self.call.save(script, operations, sizes, len(nbytes))

    def follow(self, script: int, number: int, wakes: list[int]) -> None:
        """Follow a script from an operation on; Python sees those in ``wakes``, sorted."""
        self.call.follow(script, number, (ctypes.c_int64 * len(wakes))(*wakes), len(wakes))

    def users(self) -> list[int]:
        """Return the storages that the operator in progress uses."""
        numbers = (ctypes.c_int64 * 4096)()
        return numbers[: self.call.in_use(numbers, 4096)]

    def storage(self, number: int) -> UntypedStorage:
        """Return the storage of a number; raise ``RuntimeError`` if it is gone."""
        with unwatched():
            return torch._C.TensorBase.untyped_storage(torch.ops.nearmem_guard.bytes_in(number))


def answering(make_room: Callable[[int], None]) -> Any:
    """Return a C function that lets ``make_room`` free bytes while an operator runs."""

    def answer(nbytes: int, reason: int, size: int) -> int:
        try:
            make_room(nbytes)
        except KeyboardInterrupt:
            return 0  # as ctypes does for one that comes before the try
        except BaseException as error:
            text = str(error).encode()[: size - 1] + b"\0"
            ctypes.memmove(reason, text, len(text))
            return 2
        return 1

    return ANSWER(answer)


def _build(folder: Path) -> None:
    root = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    command = [
        _compiler(), *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f"-I{root / 'include'}",
        f"-I{root / 'include/torch/csrc/api/include'}", str(SOURCES[0]), "-o", str(folder / _NAME),
        f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10",
    ]  # fmt: skip
    with build_progress(_ABOUT, None):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            lines = [line for line in made.stderr.splitlines() if "error" in line]
            raise OSError("; ".join(lines[:1]) or f"{command[0]} ended with {made.returncode}")


def _compiler() -> str:
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise OSError(f"there is no {name}")
    return name


@functools.cache
def load() -> Guard | None:
    """Return the guard, built if needed; None, with a warning, where it cannot be had."""
    try:
        version = subprocess.run([_compiler(), "--version"], capture_output=True, check=False)
        key = content_key(
            [source.read_bytes() for source in SOURCES]
            + [version.stdout, torch.__version__, platform.machine(), *FLAGS]
        )
        return Guard(cached_build("guard", key, _build, _ABOUT) / _NAME)
    except (OSError, RuntimeError, AttributeError) as error:
        warnings.warn(
            f"no compiled guard of memory plans, so that each operation of a step takes some 30 us "
            f"longer, and workspaces inside operations are not counted: {error}; install g++ 11 "
            "or newer, or name it in CXX",
            stacklevel=3,
        )
        return None
