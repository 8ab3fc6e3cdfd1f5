"""The cores' kernels on the host: a library that ``gcc`` makes, and what its kernels may touch."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sw_driver.device.errors import InvalidArgumentError, KernelError
from sw_driver.simulator.runtime import BuildError

from .cores import TROUBLES
from .programs import WINDOW_BYTES, Command, Firmware

__all__ = ["HostLibrary", "Shown", "package_kernels", "package_library"]

_NOT_ON_HOST = ("barrier", "lock", "unlock")
"""Kernels of the package that only cores have, since they wait for other cores."""

_SPAN = np.dtype([("start", "u8"), ("stop", "u8"), ("is_written", "u4"), ("unused", "u4")])
_READ, _WRITTEN, _STACK, _DIVISION, _QUOTIENT, _TRAP, _UNMAPPED, _ARRAY = range(0x100, 0x108)
"""Faults of ``host.c``."""
_FAULTS = {
    _STACK: ("unmapped", "a stack of more than 65536 bytes"),
    _DIVISION: ("division", "a division by zero"),
    _QUOTIENT: ("division", "a division of the least integer by -1"),
    _TRAP: ("stop", "a trap, as of __builtin_trap()"),
    _UNMAPPED: (
        "unmapped",
        "a touch of memory that is not there, as of a stack of more than 65536 bytes",
    ),
    _ARRAY: ("unmapped", "a write beyond an array on its stack"),
}
_LOCK = threading.Lock()
"""Held while a kernel runs: a library has one memory."""


class Shown(NamedTuple):
    """Bytes of its memory that a kernel may read, and may write if ``is_written``."""

    label: str
    span: range
    is_written: bool


class HostLibrary:
    """Kernels that run on the host: ``library`` is what ``compile_library`` returned.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for another.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        if not isinstance(library, ctypes.CDLL) or not hasattr(library, "host_run"):
            raise InvalidArgumentError(
                f"the library is {library!r}: expected what compile_library returned"
            )
        self._library = library
        library.library_name.restype = ctypes.c_char_p
        numbers = range(library.library_count())
        names = [library.library_name(each).decode() for each in numbers]
        self._numbers = dict(zip(names, numbers, strict=True))
        self.kernels = {
            name: library.library_words(number) for name, number in self._numbers.items()
        }
        """Words of arguments, by the kernel's name."""

    def run(
        self,
        name: str,
        firmware: Firmware,
        command: Command,
        memory: NDArray[np.uint8],
        shown: Sequence[Shown],
        stack_offset: int,
    ) -> None:
        """Run a command of ``firmware`` on ``memory``, which is its window 1.

        ``shown`` are places in there, ``stack_offset`` is from an address in the stack to its
        offset. Raises :class:`~sw_driver.device.errors.KernelError` if the kernel ``name`` failed.
        """
        number, count, *words = firmware.words(command)
        # A program has the numbers of the cores' image.
        numbers = [self._numbers.get(each, 0xFFFF) for each in firmware.kernels]
        host_numbers = (ctypes.c_uint16 * len(numbers))(*numbers)
        base = memory.ctypes.data
        spans = np.array(
            [(base + each.span.start, base + each.span.stop, each.is_written, 0) for each in shown],
            _SPAN,
        )
        with _LOCK:
            for variable, value in (
                ("memory", base - WINDOW_BYTES),
                ("host_pools", None),
                ("host_numbers", ctypes.addressof(host_numbers)),
            ):
                ctypes.c_void_p.in_dll(self._library, variable).value = value
            for variable, count_or_bytes in (
                ("host_numbers_count", len(numbers)),
                ("host_offset", stack_offset),
            ):
                ctypes.c_uint32.in_dll(self._library, variable).value = count_or_bytes
            words_there = (ctypes.c_uint32 * count)(*words)
            cause = self._library.host_run(
                number, count, words_there, ctypes.c_void_p(spans.ctypes.data), len(spans)
            )
            place = ctypes.c_uint64.in_dll(self._library, "host_place").value - base
            # It keeps nothing of this call.
            ctypes.c_void_p.in_dll(self._library, "host_numbers").value = None
        if not cause:
            return
        if cause in (_READ, _WRITTEN):
            cause_name, trouble = "window", _beyond(place, shown, writes=cause == _WRITTEN)
        else:
            trouble = TROUBLES.get(cause, "")
            cause_name, trouble = _FAULTS.get(cause, ("kernel", f"cause {cause}: {trouble}"))
        raise KernelError(
            f"{name} failed on the host with {trouble}; its results are not written",
            cause=cause_name,
        )


def _beyond(place: int, shown: Sequence[Shown], *, writes: bool) -> str:
    """Return in words the memory that a kernel may not touch and did."""
    verb = "a write" if writes else "a read"
    for each in shown:
        if place in each.span:
            return f"{verb} of byte {place - each.span.start} of {each.label}, which is only read"
    below = [each for each in shown if each.span.start <= place]
    nearest = max(below or shown, key=lambda each: each.span.start, default=None)
    if nearest is None:
        return f"{verb} outside of all tensors, of which it has none"
    return (
        f"{verb} of byte {place - nearest.span.start} of {nearest.label}, which has "
        f"{len(nearest.span)}, outside of all its tensors"
    )


@cache
def package_library() -> HostLibrary:
    """The package's kernels.

    Raises :class:`~sw_driver.simulator.runtime.BuildError` if there is no ``gcc``.
    """
    from .firmware.build import compile_library

    if which("gcc") is None:
        raise BuildError("kernels on the cpu are compiled by gcc, which was not found: install it")
    with TemporaryDirectory() as folder:
        return HostLibrary(compile_library(Path(folder) / "kernels.so"))


def package_kernels() -> dict[str, int]:
    """Return the kernels of :func:`package_library` with their words of arguments."""
    kernels = Firmware.of().kernels
    return {name: words for name, words in kernels.items() if name not in _NOT_ON_HOST}
