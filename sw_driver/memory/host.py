"""Pinned host memory, and memory in pages of the process in general."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sw_driver.errors import HostBufferError, OutOfMemoryError
from sw_driver.memory.allocations import AllocationTable
from sw_driver.memory.hostbuffer import zeroed_pages
from sw_driver.memory.interface import FreeSpace, Leg
from sw_driver.memory.pieces import Piece, PieceMemory
from sw_driver.memory.pointers import HostPointer, Pointer

__all__ = ["HostMemory", "MappedMemory"]

P = TypeVar("P", bound=Pointer)


class MappedMemory(PieceMemory[P]):
    """A memory in anonymous pages of the process.

    Allocations start on a page, read zero at first, and cost memory as they are touched.
    """

    def free_space(self) -> Mapping[int, FreeSpace]:
        """Of none: it has what the system gives."""
        return {}

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
        return self._elements(pointer, kind.itemsize, count).view(kind)

    def read(self, pointer: P, destination: NDArray[np.uint8]) -> None:
        """Copies the bytes from ``pointer`` on to ``destination``, as many as it holds."""
        np.copyto(destination, self._bytes(pointer, destination.nbytes))

    def write(self, pointer: P, source: NDArray[np.uint8]) -> None:
        """Copies ``source`` to the bytes from ``pointer`` on."""
        np.copyto(self._bytes(pointer, source.nbytes), source)

    def _obtain(self, size: int, channel: int) -> Piece:
        try:
            data = zeroed_pages(size)
        except (OSError, OverflowError) as error:
            raise OutOfMemoryError(
                f"no room for {size} bytes in {self.name}: the system gives none ({error}); "
                f"{self.allocated_bytes} bytes are allocated",
                nbytes=size,
                allocated_bytes=self.allocated_bytes,
            ) from None
        return Piece(data, data.ctypes.data)


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
        return sum(len(piece.data) for piece in list(self._pieces.values()) if piece.locked)

    def is_locked(self, pointer: HostPointer) -> bool:
        """Whether the allocation that ``pointer`` points into is page-locked."""
        with self._lock:
            self._refuse_closed()
            return self._pieces[self.allocations.check(pointer).number].locked

    def pin_with(self, pin: Callable[[int], NDArray[np.uint8]]) -> None:
        """Takes new allocations from ``pin``, which returns that many page-locked bytes.

        Where it raises ``RuntimeError``, the allocation is made as if there were no GPU.
        """
        with self._lock:
            self._pin = pin

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """None: see the class."""
        return []

    def _obtain(self, size: int, channel: int) -> Piece:
        if self._pin:
            with suppress(RuntimeError):
                data = self._pin(size)
                return Piece(data, data.ctypes.data, locked=True)
        piece = super()._obtain(size, channel)
        return Piece(piece.data, piece.address, locked=_lock(piece.data, self.locked_bytes))


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
