"""Commands for a core of the programmable PIM: kernels, programs, and works for the pools.

``docs/pim-kernels.md``, "A kernel and its arguments", is the specification.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from hw.pim.config import BEAT_BYTES
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_integer

from .descriptor import Work

__all__ = [
    "COUNTS_BYTES",
    "FIRMWARE_BYTES",
    "FUNCTIONS",
    "QUEUE_BYTES",
    "QUEUE_SLOTS",
    "RING_BYTES",
    "SLOT_BYTES",
    "WINDOW_BYTES",
    "Command",
    "Firmware",
    "Window",
    "work_slots",
]

QUEUE_BYTES, RING_BYTES, COUNTS_BYTES, FIRMWARE_BYTES = 0x8000, 0x9000, 0xA000, 0xA100
"""Layout of a core's window 0, in bytes, with the image at 0.

The offsets of the queue, the ring and the counts of operations, and the size of the whole.
"""
QUEUE_SLOTS, SLOT_BYTES = 16, 256
"""Slots of a core's queue, and bytes of a slot."""
WINDOW_BYTES = 1 << 27
"""Bytes of offsets in a window; window i starts at offset i times this."""

FUNCTIONS = b"\0\x7fC functions\0"
"""Bytes between an image and the addresses and names of its functions."""
_ENTRY = struct.Struct("<IHH24s")
_SLOT_WORDS, _MOST_WORDS, _WINDOWS, _OPERATIONS = 64, 46, 48, 52
_WINDOW_COUNT = 7


class Window(NamedTuple):
    """A part of the stack that a kernel may access; both fields are multiples of 32."""

    address_bytes: int
    size_bytes: int


class Command(NamedTuple):
    """A kernel with its arguments: byte offsets, integers, and floats for FP32 numbers."""

    kernel: str
    arguments: Sequence[int | float | np.floating]


class Firmware:
    """Program of a core: its ``image``, and its ``kernels`` in the order of their numbers.

    ``kernels`` has the number of argument words of every kernel, by name. ``functions`` has the
    names of the C functions by address, if the image came with them.

    Examples
    --------
    >>> firmware = Firmware.of()
    >>> window = Window(address_bytes=1 << 20, size_bytes=8192)
    >>> words = firmware.slot(Command("fill", (1 << 27, 1024, 0)), [window])
    >>> firmware.kernels["fill"], words[:5]
    (3, [2, 3, 134217728, 1024, 0])
    """

    def __init__(
        self,
        kernels: Mapping[str, int],
        image: bytes = b"",
        functions: Mapping[int, str] | None = None,
    ) -> None:
        self.kernels = dict(kernels)
        self.image = image
        self.functions = dict(functions or {})
        self._numbers = {name: number for number, name in enumerate(self.kernels)}

    @classmethod
    def of(cls, image: bytes | None = None) -> Firmware:
        """Read the firmware in ``image``, by default the package's.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for an invalid image.
        """
        if not isinstance(image, bytes | None):
            raise InvalidArgumentError(f"the image is {image!r}: expected bytes")
        if image is None:
            image = (files("sw_driver.pim.firmware") / "firmware.bin").read_bytes()
        image, _, named = image.partition(FUNCTIONS)
        _, begin, end = struct.unpack_from("<3I", image.ljust(12, b"\0"))
        if not 12 <= begin <= end <= len(image) <= QUEUE_BYTES or (end - begin) % _ENTRY.size:
            raise InvalidArgumentError(
                f"an image of {len(image)} bytes with kernels from {begin:#x} to {end:#x}: "
                f"expected one that compile_image makes, of {QUEUE_BYTES} bytes at most",
                bytes=len(image),
            )
        entries = _ENTRY.iter_unpack(image[begin:end])
        kernels = {name.rstrip(b"\0").decode(): words for _, words, _, name in entries}
        functions = {}
        while named:
            (address,) = struct.unpack_from("<I", named.ljust(4, b"\0"))
            name, _, named = named[4:].partition(b"\0")
            functions[address] = name.decode(errors="replace")
        return cls(kernels, image, functions)

    def function_at(self, address: int) -> str:
        """Return the C function that holds an address; empty if it is unknown."""
        before = [start for start in self.functions if start <= address]
        if not before or address - min(before) > len(self.image):
            return ""
        return self.functions[max(before)]

    def words(self, command: Command) -> list[int]:
        """Return the words of a command: the kernel's number, the argument count, the arguments.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown kernel, a wrong
        number of arguments, and an argument that does not fit a word.
        """
        name, arguments = command
        if not isinstance(name, str) or name not in self.kernels:
            raise InvalidArgumentError(
                f"no kernel {name!r}: expected one of {', '.join(self.kernels)}", name=name
            )
        if not isinstance(arguments, Sequence) or isinstance(arguments, str | bytes):
            raise InvalidArgumentError(f"{name}'s arguments are {arguments!r}: expected a list")
        if len(arguments) != self.kernels[name]:
            raise InvalidArgumentError(
                f"{name} has {len(arguments)} arguments: expected {self.kernels[name]}",
                arguments=len(arguments),
            )
        return [self._numbers[name], len(arguments), *map(_word, arguments)]

    def slot(self, command: Command, windows: Sequence[Window]) -> list[int]:
        """Return the words of a slot in a core's queue; ``windows`` start at window 1."""
        words = self.words(command)
        if len(windows) > _WINDOW_COUNT:
            raise InvalidArgumentError(
                f"{command.kernel} has {len(windows)} windows, a core has {_WINDOW_COUNT} for it: "
                "give larger ones that hold several tensors each"
            )
        check_integer("words of a command", len(words) - 2, 0, _MOST_WORDS)
        words += [0] * (_SLOT_WORDS - len(words))
        for window in windows:
            for name, number in zip(Window._fields, window, strict=True):
                check_integer(f"{name} of a window", number, 0)
            if any(number % BEAT_BYTES for number in window):
                raise InvalidArgumentError(f"{window}: both have to be multiples of {BEAT_BYTES}")
        beats = [number // BEAT_BYTES for window in windows for number in window]
        words[_WINDOWS : _WINDOWS + len(beats)] = beats
        return words

    def program(self, commands: Iterable[Command]) -> list[int]:
        """Return the words of the commands that the kernel ``program`` runs."""
        return [word for command in commands for word in self.words(command)]


def work_slots(works: Iterable[Work]) -> list[int]:
    """Return the slots that recursive kernels offer to the pools.

    A slot has a work with its plan and the counts of its operations.
    """
    words: list[int] = []
    for work in works:
        counts = [half for count in work.operations for half in (count & 0xFFFF_FFFF, count >> 32)]
        slot = [*work.encode(), *[0] * (_SLOT_WORDS - len(work.encode()))]
        slot[_OPERATIONS : _OPERATIONS + len(counts)] = counts
        words += slot
    return words


def _word(value: int | float | np.floating) -> int:
    if isinstance(value, (float, np.floating)):
        with np.errstate(over="ignore"):
            number = np.float32(value)
        if np.isinf(number) and not np.isinf(value):
            raise InvalidArgumentError(f"an argument is {value}: expected one that FP32 can hold")
        return int(number.view(np.uint32))
    return check_integer("an argument", value, -(1 << 31), (1 << 32) - 1) & 0xFFFF_FFFF
