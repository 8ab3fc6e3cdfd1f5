"""Pinned host memory, and memory in pages of the process in general."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sw_driver.errors import ClosedError, HostBufferError, OutOfMemoryError
from sw_driver.memory.allocations import AllocationTable, checked_channel, checked_size
from sw_driver.memory.interface import FreeSpace, Leg
from sw_driver.memory.pointers import HostPointer, Pointer
from sw_driver.runtime.schedule import Schedule

__all__ = ["HostMemory", "MappedMemory", "Pages", "typed_bytes"]

P = TypeVar("P", bound=Pointer)


@dataclass(frozen=True)
class Pages:
    """What one allocation lies in."""

    data: NDArray[np.uint8]
    locked: bool = False
    """Whether the system may neither move them nor write them to swap."""


class MappedMemory(Generic[P]):
    """A memory in anonymous pages of the process. Any thread may call.

    Allocations start on a page, read zero at first, and cost memory as they are touched. Arrays
    of an allocation stay valid after it is freed, since Python keeps the pages for them; pointers
    do not.

    Parameters
    ----------
    name: as in reports and messages.
    allocations: the memory's table, empty.
    """

    schedules: Sequence[Schedule] = ()

    def __init__(self, name: str, allocations: AllocationTable[P]) -> None:
        self.name = name
        self.allocations = allocations
        self._lock = threading.Lock()
        self._pages: dict[int, Pages] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self._pages)} allocations of {self.allocated_bytes} bytes>"

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the allocations that there are, as asked for."""
        return sum(pages.data.size for pages in list(self._pages.values()))

    def allocate(self, nbytes: int, channel: int | None = None) -> P:
        """Allocates memory. There is one channel, 0.

        Raises :class:`~sw_driver.errors.InvalidSizeError`,
        :class:`~sw_driver.errors.NoSuchChannelError`,
        :class:`~sw_driver.errors.OutOfMemoryError` and :class:`~sw_driver.errors.ClosedError`.
        """
        size = checked_size("nbytes", nbytes, minimum=1)
        number = checked_channel(0 if channel is None else channel, 1, f" or None in {self.name}")
        with self._lock:
            self._refuse_closed()
            pages = self._obtain(size)
            pointer = self.allocations.add(
                channel=number, address=pages.data.ctypes.data, nbytes=size
            )
            self._pages[pointer.allocation] = pages
        return pointer

    def free(self, pointer: Any) -> None:
        """Frees an allocation; its pages go back to the system when no array needs them.

        Raises what :meth:`~sw_driver.memory.allocations.AllocationTable.remove` raises, and
        :class:`~sw_driver.errors.ClosedError`.
        """
        with self._lock:
            self._refuse_closed()
            del self._pages[self.allocations.remove(pointer).number]

    def free_space(self) -> Sequence[FreeSpace]:
        """Of none: it has what the system gives."""
        return ()

    def array(
        self, pointer: P, dtype: DTypeLike = np.uint8, count: int | None = None
    ) -> NDArray[Any]:
        """A numpy array in the allocation: ``count`` elements from ``pointer`` on.

        Without ``count``, as many as there is room for. Filling the array fills the memory.

        Raises :class:`~sw_driver.errors.ForeignPointerError`,
        :class:`~sw_driver.errors.FreedPointerError`,
        :class:`~sw_driver.errors.CopyRangeError`, :class:`~sw_driver.errors.InvalidSizeError`,
        and :class:`~sw_driver.errors.HostBufferError` for a dtype of no fixed size.
        """
        kind = np.dtype(dtype)
        if kind.hasobject or not kind.itemsize:
            raise HostBufferError(
                f"elements of dtype {kind} do not lie in memory as bytes: expected a numeric dtype",
                dtype=str(kind),
            )
        nbytes = typed_bytes(self.allocations, pointer, kind.itemsize, count)
        return self._bytes(pointer, nbytes).view(kind)

    def read(self, pointer: P, destination: NDArray[np.uint8]) -> None:
        """Copies the bytes from ``pointer`` on to ``destination``, as many as it holds."""
        np.copyto(destination, self._bytes(pointer, destination.nbytes))

    def write(self, pointer: P, source: NDArray[np.uint8]) -> None:
        """Copies ``source`` to the bytes from ``pointer`` on."""
        np.copyto(self._bytes(pointer, source.nbytes), source)

    def close(self) -> None:
        """Gives up all allocations. Calling it twice does no harm."""
        with self._lock:
            self._closed = True
            self._pages.clear()

    def _bytes(self, pointer: P, nbytes: int) -> NDArray[np.uint8]:
        with self._lock:
            self._refuse_closed()
            allocation = self.allocations.range(pointer, nbytes)
            start = pointer.address - allocation.address
            return self._pages[allocation.number].data[start : start + nbytes]

    def _obtain(self, size: int) -> Pages:
        try:
            # Private, so that a process that forks does not share them with its child.
            data = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise OutOfMemoryError(
                f"no room for {size} bytes in {self.name}: the system gives none ({error}); "
                f"{self.allocated_bytes} bytes are allocated",
                nbytes=size,
                allocated_bytes=self.allocated_bytes,
            ) from None
        return Pages(np.frombuffer(data, dtype=np.uint8))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.name} was closed")


class HostMemory(MappedMemory[HostPointer]):
    """Pinned host memory, so that devices reach it without the processor (paper, section 4.3).

    Pages are locked as far as the limit of the process (``ulimit -l``) and the free memory allow;
    :meth:`is_locked` tells. Without that, everything works the same. While a CUDA GPU is in use,
    new allocations are CUDA's page-locked memory instead, which the GPU copies from and to at full
    speed; they do not start out as zero.

    Its transfers take no simulated time of their own. That of a copy to or from the AXDIMM is all
    in the host link, whose rate is that of the paper's host memory, 6.4 GB/s (DDR4 at 800 MT/s,
    Table 3). A GPU or two NVMe devices alone would be faster than that memory, so for copies
    between them and the host the simulated time is a lower bound.

    Parameters
    ----------
    device: number of the opened device, for its pointers.
    """

    def __init__(self, device: int) -> None:
        super().__init__("host", AllocationTable(HostPointer, device=device, source="MallocHost"))
        self._pin: Callable[[int], NDArray[np.uint8]] | None = None

    @property
    def locked_bytes(self) -> int:
        """Bytes of the allocations that are page-locked, of ``allocated_bytes``."""
        return sum(pages.data.size for pages in list(self._pages.values()) if pages.locked)

    def is_locked(self, pointer: HostPointer) -> bool:
        """Whether the allocation that ``pointer`` points into is page-locked."""
        with self._lock:
            self._refuse_closed()
            return self._pages[self.allocations.check(pointer).number].locked

    def pin_with(self, pin: Callable[[int], NDArray[np.uint8]]) -> None:
        """Takes new allocations from ``pin``, which returns that many page-locked bytes.

        Where it raises ``RuntimeError``, the allocation is made as if there were no GPU.
        """
        with self._lock:
            self._pin = pin

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """None: see the class."""
        return []

    def _obtain(self, size: int) -> Pages:
        if self._pin:
            with suppress(RuntimeError):
                return Pages(self._pin(size), locked=True)
        pages = super()._obtain(size)
        return Pages(pages.data, locked=_lock(pages.data, self.locked_bytes))


def typed_bytes(
    allocations: AllocationTable[Any], pointer: Any, itemsize: int, count: int | None
) -> int:
    """Bytes of ``count`` elements from ``pointer`` on, without it of all that there is room for.

    Raises :class:`~sw_driver.errors.ForeignPointerError`,
    :class:`~sw_driver.errors.FreedPointerError`, :class:`~sw_driver.errors.InvalidSizeError`.
    """
    allocation = allocations.check(pointer)
    if count is None:
        rest = allocation.address + allocation.nbytes - pointer.address
        return max(rest, 0) // itemsize * itemsize
    return checked_size("count", count) * itemsize


_libc = ctypes.CDLL(None)


def _lock(data: NDArray[np.uint8], locked_bytes: int) -> bool:
    """Locks the pages, unless that would take more than the limit or all that is free.

    The system would not refuse either to a privileged process: it would end processes for memory.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit != resource.RLIM_INFINITY and locked_bytes + data.size > limit:
        return False
    if data.size > os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE:
        return False
    return _libc.mlock(ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.size)) == 0
