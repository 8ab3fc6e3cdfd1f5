"""Transfers between device-nodes and memory-nodes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Piece", "Side"]


class Side(IntEnum):
    """Side of a device's memory-node, seen from the device."""

    LEFT = 0
    RIGHT = 1


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A transfer between contiguous device memory and a contiguous part of a share."""

    side: Side
    write: bool
    """True for a transfer to the memory-node, False for one from it."""
    local: int
    """Byte address in the device's memory; a multiple of 64, as are ``remote`` and ``nbytes``."""
    remote: int
    """Byte address in the device's share of the memory-node."""
    nbytes: int
    compressed: bool = False
    """True to move blocks of 4 KB without their zeros.

    ``remote`` is then the start of a block. The end is a block's end, or the end of the data
    written before.
    """
