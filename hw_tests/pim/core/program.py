"""The program of ``program.c``, which does what a bench tells it, and what it is told."""

from __future__ import annotations

import struct
from enum import IntEnum
from pathlib import Path

__all__ = [
    "COMMANDS",
    "OWN",
    "POOL",
    "PROGRAM",
    "RESULTS",
    "SCRATCHPAD",
    "UNCACHED",
    "WINDOW_BYTES",
    "Command",
    "Op",
    "commands",
    "window",
]

PROGRAM = (Path(__file__).parent / "program.bin").read_bytes()
SCRATCHPAD, OWN, POOL, UNCACHED = 0x1000_0000, 0x8000_0000, 0x8001_0000, 1 << 31
WINDOW_BYTES = 1 << 27
COMMANDS, RESULTS = 0x1000, 0x4000
"""Where in window 0 they are."""

Command = tuple["Op", int, int]
"""What to do, an address, and a value."""


class Op(IntEnum):
    LOAD = 1
    STORE = 2
    LOAD_BYTE = 3
    STORE_BYTE = 4
    LOAD_HALF = 5
    STORE_HALF = 6
    INVALIDATE = 7
    WAIT = 8
    CALL = 9
    DEEP = 10
    ENDLESS = 11
    SUBTRACT = 12
    RELU = 13
    SPREAD = 14


def window(number: int, offset: int = 0) -> int:
    """The cached address of a window's byte."""
    return 0x4000_0000 + number * WINDOW_BYTES + offset


def commands(*several: Command) -> bytes:
    """Commands as they are in memory."""
    return b"".join(struct.pack("<3I", *each) for each in [*several, (0, 0, 0)])
