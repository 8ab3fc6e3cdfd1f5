"""What device-nodes need of the network that the memory-nodes are in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .compression import CompressionStatistics

__all__ = ["NodeNetwork", "Piece", "Side"]


class Side(IntEnum):
    """Which of its two memory-nodes, seen from the device."""

    LEFT = 0
    RIGHT = 1


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A transfer between a stretch of device-local memory and one of a share of a memory-node."""

    side: Side
    write: bool
    """To the memory-node."""
    local: int
    """Byte address in the device's memory; like the other two a multiple of 64."""
    remote: int
    """Byte address in the share."""
    nbytes: int
    compressed: bool = False
    """In blocks of 4 KB without their zeros: ``remote`` is the start of one, and so is the end, or
    it is where all that was written ended."""


class NodeNetwork(Protocol):
    """Device-nodes and memory-nodes, real or simulated. Time passes in :meth:`advance` only."""

    local_bytes: int
    """Memory of a device-node."""
    share_bytes: int
    """What each of the two memory-nodes beside a device has for it."""
    timed: bool
    """Whether there is a clock."""

    def local(self, device: int) -> NDArray[np.uint8]:
        """The memory of device-node ``device``, to be read and written in place."""
        ...

    def start(self, device: int, piece: Piece) -> int:
        """Begins a transfer; returns its ticket. Several go on at once, in any order."""
        ...

    def finished(self, ticket: int) -> bool:
        """Whether the transfer is over; asked once more after that, the ticket is unknown.

        Raises :class:`~sw_driver.errors.RemoteMemoryError` if a memory-node refused it.
        """
        ...

    def compression(self, device: int) -> CompressionStatistics:
        """What has been compressed of the device's transfers since the beginning."""
        ...

    def advance(self, cycles: int) -> None:
        """Lets so many fabric cycles pass, or less if a transfer ends before."""
        ...

    def cycles(self) -> int:
        """Fabric cycles since the beginning; 0 without a clock."""
        ...
