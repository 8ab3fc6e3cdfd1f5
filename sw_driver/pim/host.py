"""The cores' kernels compiled for the host by ``gcc``, with checks of their memory accesses."""

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
"""Kernels of the package that run only on cores, since they wait for other cores."""

_SPAN = np.dtype([("start", "u8"), ("stop", "u8"), ("is_written", "u4"), ("unused", "u4")])
_READ, _WRITTEN, _STACK, _DIVISION, _QUOTIENT, _TRAP, _UNMAPPED, _ARRAY = range(0x100, 0x108)
"""Fault codes of ``host.c``."""
_FAULTS = {
    _STACK: ("unmapped", "a stack of more than 65536 bytes"),
    _DIVISION: ("division", "a division by zero"),
    _QUOTIENT: ("division", "a division of the least integer by -1"),
    _TRAP: ("stop", "a trap, as of __builtin_trap()"),
    _UNMAPPED: (
        "unmapped",
        "an access to memory that does not exist, such as a stack of more than 65536 bytes",
    ),
    _ARRAY: ("unmapped", "a write beyond an array on its stack"),
}
_LOCK = threading.Lock()
"""Lock for the length of a kernel: a library has one set of global variables."""


class Shown(NamedTuple):
    """A span of its memory that a kernel may read; it may also write there if ``is_written``."""

    label: str
    span: range
    is_written: bool


class HostLibrary:
    """A library of kernels for the host, which ``compile_library`` returned.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for any other ``library``.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        if not isinstance(library, ctypes.CDLL) or not hasattr(library, "host_run"):
            raise InvalidArgumentError(
                f"the library is {library!r}: expected what compile_library returned"
            )
        self._library = library
        library.library_name.restype = ctypes.c_char_p
        numbers = range(library.library_count())
        names = [library.library_name(number).decode() for number in numbers]
        self._numbers = dict(zip(names, numbers, strict=True))
        self.kernels = {
            name: library.library_words(number) for name, number in self._numbers.items()
        }
        """Number of argument words, by the kernel's name."""

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

        ``shown`` are the spans of ``memory`` that the kernel may use. ``stack_offset`` is added to
        an address in the stack to get a kernel's offset. Messages call the kernel ``name``.

        Raises :class:`~sw_driver.device.errors.KernelError` if the kernel failed.
        """
        number, count, *words = firmware.words(command)
        # A program calls kernels by their numbers in the cores' image.
        numbers = [self._numbers.get(kernel, 0xFFFF) for kernel in firmware.kernels]
        host_numbers = (ctypes.c_uint16 * len(numbers))(*numbers)
        base = memory.ctypes.data
        spans = np.array(
            [(base + span.start, base + span.stop, is_written, 0) for _, span, is_written in shown],
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
            # The array of this call is freed: leave no pointer to it.
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
    """Describe a forbidden access of a kernel to byte ``place`` of its memory."""
    verb = "a write" if writes else "a read"
    for label, span, _ in shown:
        if place in span:
            return f"{verb} of byte {place - span.start} of {label}, which is only read"
    below = [part for part in shown if part.span.start <= place]
    nearest = max(below or shown, key=lambda part: part.span.start, default=None)
    if nearest is None:
        return f"{verb} although it has no tensors"
    return (
        f"{verb} of byte {place - nearest.span.start} of {nearest.label}, which has "
        f"{len(nearest.span)} bytes, outside of all its tensors"
    )


@cache
def package_library() -> HostLibrary:
    """Compile the package's kernels for the host, once.

    Raises :class:`~sw_driver.simulator.runtime.BuildError` if there is no ``gcc``.
    """
    from .firmware.build import compile_library

    if which("gcc") is None:
        raise BuildError("kernels on the cpu are compiled by gcc, which was not found: install it")
    with TemporaryDirectory() as folder:
        return HostLibrary(compile_library(Path(folder) / "kernels.so"))


def package_kernels() -> dict[str, int]:
    """Return the number of argument words of each kernel of :func:`package_library`."""
    kernels = Firmware.of().kernels
    return {name: words for name, words in kernels.items() if name not in _NOT_ON_HOST}
