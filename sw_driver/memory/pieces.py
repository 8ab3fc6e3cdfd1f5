"""What the memories of host and GPU have in common: each allocation is a piece of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sw_driver.errors import ClosedError
from sw_driver.memory.allocations import AllocationTable, checked_channel, checked_size
from sw_driver.memory.pointers import Pointer
from sw_driver.runtime.schedule import Schedule

__all__ = ["Piece", "PieceMemory"]

P = TypeVar("P", bound=Pointer)


@dataclass(frozen=True)
class Piece:
    """What one allocation lies in."""

    data: Any
    """Its bytes, an array or tensor."""
    address: int
    locked: bool = False
    """Whether the system may neither move its pages nor write them to swap."""


class PieceMemory(ABC, Generic[P]):
    """A memory whose pieces come from elsewhere and go back there. Any thread may call.

    Arrays and tensors of an allocation stay valid after it is freed, since Python keeps the piece
    for them; pointers do not.

    Parameters
    ----------
    name: as in reports and messages.
    allocations: the memory's table, empty.
    """

    schedules: Sequence[Schedule] = ()
    channels = 1
    description = ""
    """What it is, in words."""

    def __init__(self, name: str, allocations: AllocationTable[P]) -> None:
        self.name = name
        self.allocations = allocations
        self._lock = threading.Lock()
        self._pieces: dict[int, Piece] = {}
        self._closed = False

    def __repr__(self) -> str:
        about = f", {self.description}" if self.description else ""
        held = f"{len(self._pieces)} allocations of {self.allocated_bytes} bytes"
        return f"<{self.name}: {held}{about}>"

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the allocations that there are, as asked for."""
        return sum(len(piece.data) for piece in list(self._pieces.values()))

    def allocate(self, nbytes: int, channel: int | None = None) -> P:
        """Allocates memory of ``channel``; None is channel 0.

        Raises :class:`~sw_driver.errors.InvalidSizeError`,
        :class:`~sw_driver.errors.NoSuchChannelError`,
        :class:`~sw_driver.errors.OutOfMemoryError`, :class:`~sw_driver.errors.ClosedError`, and
        of a GPU :class:`~sw_driver.errors.GpuError`.
        """
        size = checked_size("nbytes", nbytes, minimum=1)
        number = checked_channel(
            0 if channel is None else channel, self.channels, f" or None in {self.name}"
        )
        with self._lock:
            self._refuse_closed()
            piece = self._obtain(size, number)
            pointer = self.allocations.add(channel=number, address=piece.address, nbytes=size)
            self._pieces[pointer.allocation] = piece
        return pointer

    def free(self, pointer: Any) -> None:
        """Frees an allocation; its piece goes back when no array or tensor needs it.

        Raises what :meth:`~sw_driver.memory.allocations.AllocationTable.remove` raises, and
        :class:`~sw_driver.errors.ClosedError`.
        """
        with self._lock:
            self._refuse_closed()
            del self._pieces[self.allocations.remove(pointer).number]

    def close(self) -> None:
        """Gives up all allocations. Calling it twice does no harm."""
        with self._lock:
            self._closed = True
            self._pieces.clear()

    @abstractmethod
    def _obtain(self, size: int, channel: int) -> Piece: ...

    def _bytes(self, pointer: P, nbytes: int) -> Any:
        with self._lock:
            self._refuse_closed()
            allocation = self.allocations.range(pointer, nbytes)
            start = pointer.address - allocation.address
            return self._pieces[allocation.number].data[start : start + nbytes]

    def _elements(self, pointer: P, itemsize: int, count: int | None) -> Any:
        """The bytes of ``count`` elements from ``pointer`` on, by default all there is room for."""
        if count is None:
            allocation = self.allocations.check(pointer)
            rest = allocation.address + allocation.nbytes - pointer.address
            count = max(rest, 0) // itemsize
        return self._bytes(pointer, checked_size("count", count) * itemsize)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.name} was closed")
