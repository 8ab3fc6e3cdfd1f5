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


class NodeNetwork(Protocol):
    """Device-nodes and memory-nodes, real or simulated. Time passes in :meth:`advance` only."""

    local_bytes: int
    """Bytes of a device-node's memory."""
    share_bytes: int
    """Bytes that each of the two memory-nodes beside a device has for it."""
    timed: bool
    """Whether the network has a clock."""

    def local(self, device: int) -> NDArray[np.uint8]:
        """The memory of device-node ``device``, to be read and written in place."""
        ...

    def start(self, device: int, piece: Piece) -> int:
        """Begins a transfer; returns its ticket. Several go on at once, in any order."""
        ...

    def finished(self, ticket: int) -> bool:
        """Whether the transfer is over; asked once more after that, the ticket is unknown.

        Raises :class:`~sw_driver.device.errors.RemoteMemoryError` if a memory-node refused it.
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
