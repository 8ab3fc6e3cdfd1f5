"""What device-nodes ask of memory-nodes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Piece", "Side"]


class Side(IntEnum):
    """Which of its two memory-nodes a device means, seen from itself."""

    LEFT = 0
    RIGHT = 1


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A transfer between a stretch of device-local memory and one of a share of a memory-node."""

    side: Side
    write: bool
    """Whether the transfer is to the memory-node; else it is from there."""
    local: int
    """Byte address in the device's memory; a multiple of 64, as are ``remote`` and ``nbytes``."""
    remote: int
    """Byte address in the device's share of the memory-node."""
    nbytes: int
    compressed: bool = False
    """Whether blocks of 4 KB go without their zeros: ``remote`` is then the start of one, and so is
    the end, or it is where all that was written ended."""
