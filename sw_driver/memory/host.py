"""Host memory, and what memories have in common whose allocations are pieces of their own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sw_driver.errors import ClosedError, InvalidArgumentError, OutOfMemoryError
from sw_driver.memory.allocations import AllocationTable, checked_channel, checked_size
from sw_driver.memory.hostbuffer import zeroed_pages
from sw_driver.memory.interface import Leg
from sw_driver.memory.pointers import HostPointer, Pointer
from sw_driver.runtime.schedule import Schedule

__all__ = ["HostMemory", "MappedMemory", "PieceMemory"]

P = TypeVar("P", bound=Pointer)


class PieceMemory(ABC, Generic[P]):
    """A memory whose allocations are arrays or tensors of bytes. Any thread may call.

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
    """What the memory is, in words."""

    def __init__(self, name: str, allocations: AllocationTable[P]) -> None:
        self.name = name
        self.allocations = allocations
        self._lock = threading.Lock()
        self._pieces: dict[int, Any] = {}
        self._closed = False

    def __repr__(self) -> str:
        about = f", {self.description}" if self.description else ""
        held = f"{len(self._pieces)} allocations of {self.allocated_bytes} bytes"
        return f"<{self.name}: {held}{about}>"

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the allocations not yet freed, as asked for."""
        return sum(map(len, list(self._pieces.values())))

    def allocate(self, nbytes: int, channel: int | None = None) -> P:
        """Allocates memory of ``channel``; None is channel 0.

        Raises :class:`~sw_driver.errors.InvalidArgumentError` for a size or channel,
        :class:`~sw_driver.errors.OutOfMemoryError`, :class:`~sw_driver.errors.ClosedError`, and
        of a GPU :class:`~sw_driver.errors.GpuError`.
        """
        size = checked_size("nbytes", nbytes, minimum=1)
        number = checked_channel(
            0 if channel is None else channel, self.channels, f" or None in {self.name}"
        )
        with self._lock:
            self._refuse_closed()
            piece, address = self._obtain(size, number)
            pointer = self.allocations.add(channel=number, address=address, nbytes=size)
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
    def _obtain(self, size: int, channel: int) -> tuple[Any, int]:
        """A piece of memory and its address."""

    def _bytes(self, pointer: P, nbytes: int) -> Any:
        with self._lock:
            self._refuse_closed()
            allocation = self.allocations.range(pointer, nbytes)
            start = pointer.address - allocation.address
            return self._pieces[allocation.number][start : start + nbytes]

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


class MappedMemory(PieceMemory[P]):
    """A memory in anonymous pages of the process.

    Allocations start on a page, read zero at first, and cost memory as they are touched.
    """

    def array(
        self, pointer: P, dtype: DTypeLike = np.uint8, count: int | None = None
    ) -> NDArray[Any]:
        """A numpy array in the allocation: ``count`` elements from ``pointer`` on.

        Without ``count``, as many as there is room for. Filling the array fills the memory.

        Raises :class:`~sw_driver.errors.PointerError`, :class:`~sw_driver.errors.RangeError`, and
        :class:`~sw_driver.errors.InvalidArgumentError` for a count that is none and a dtype of no
        fixed size.
        """
        kind = np.dtype(dtype)
        if kind.hasobject or not kind.itemsize:
            raise InvalidArgumentError(
                f"elements of dtype {kind} do not lie in memory as bytes: expected a numeric dtype",
                dtype=str(kind),
            )
        return self._elements(pointer, kind.itemsize, count).view(kind)

    def read(self, pointer: P, destination: NDArray[np.uint8]) -> None:
        """Copies the bytes from ``pointer`` on to ``destination``, as many as it holds."""
        np.copyto(destination, self._bytes(pointer, destination.nbytes))

    def write(self, pointer: P, source: NDArray[np.uint8]) -> None:
        """Copies ``source`` to the bytes from ``pointer`` on."""
        np.copyto(self._bytes(pointer, source.nbytes), source)

    def _obtain(self, size: int, channel: int) -> tuple[Any, int]:
        try:
            data = zeroed_pages(size)
        except (OSError, OverflowError) as error:
            raise OutOfMemoryError(
                f"no room for {size} bytes in {self.name}: the system gives none ({error}); "
                f"{self.allocated_bytes} bytes are allocated",
                nbytes=size,
                allocated_bytes=self.allocated_bytes,
            ) from None
        return data, data.ctypes.data


class HostMemory(MappedMemory[HostPointer]):
    """The paper's pinned host memory, which devices reach without the processor (section 4.3).

    Here it is ordinary memory of the process. Its transfers take no simulated time of their own.
    That of a copy to or from the AXDIMM is all in the host link, whose rate is that of the paper's
    host memory, 6.4 GB/s (DDR4 at 800 MT/s, Table 3). A GPU or two NVMe devices alone would be
    faster than that memory, so for copies between them and the host the simulated time is a lower
    bound.

    Parameters
    ----------
    device: number of the opened device, for its pointers.
    """

    def __init__(self, device: int) -> None:
        super().__init__("host", AllocationTable(HostPointer, device=device, source="MallocHost"))

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """No legs: host memory adds no simulated time to a copy, see the class."""
        return []
