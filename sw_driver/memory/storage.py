"""One registered storage: what is allocated on it, and its bytes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from sw_driver.errors import ClosedError
from sw_driver.memory.allocator import Allocator
from sw_driver.memory.directio import BLOCK_BYTES, DirectFile
from sw_driver.memory.hostbuffer import zeroed_pages
from sw_driver.memory.interface import FreeSpace
from sw_driver.memory.timing import LinkTiming
from sw_driver.runtime.schedule import Schedule

__all__ = ["Storage", "StorageStatistics"]


@dataclass(frozen=True, kw_only=True)
class StorageStatistics(FreeSpace):
    """What is allocated on a registered storage, and what has been done with it."""

    path: str
    """Absolute."""
    direct: bool
    """Whether transfers go past the page cache."""
    operations: int
    """Reads and writes begun, failed ones among them; of a striped copy, those here."""
    bytes_read: int
    """By reads that succeeded, without what alignment adds."""
    bytes_written: int
    """By writes that succeeded, without what alignment adds."""


class Storage:
    """Bytes at any offset of a file or device that transfers whole blocks, and its time.

    Any thread may transfer, one at a time; whoever allocates holds a lock.
    """

    def __init__(self, file: DirectFile, timing: LinkTiming, schedule: Schedule) -> None:
        self.file = file
        self.timing = timing
        self.schedule = schedule
        self.allocator = Allocator(limit_bytes=file.capacity_bytes, granule_bytes=BLOCK_BYTES)
        self._operations = 0
        self._bytes_read = 0
        self._bytes_written = 0
        self._closed = False
        self._lock = threading.Lock()

    def statistics(self) -> StorageStatistics:
        """Takes the statistics."""
        memory = self.allocator.statistics()
        return StorageStatistics(
            **{each.name: getattr(memory, each.name) for each in fields(FreeSpace)},
            path=self.file.path,
            direct=self.file.direct,
            operations=self._operations,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
        )

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """``nbytes`` bytes, at least one, from ``offset`` on.

        Raises :class:`~sw_driver.errors.StorageChangedError`,
        :class:`~sw_driver.errors.StorageIOError`, :class:`~sw_driver.errors.ClosedError`.
        """
        first, buffer = _blocks(offset, nbytes)
        with self._lock:
            self._begin()
            self.file.read(first, buffer)
            self._bytes_read += nbytes
        return buffer[offset - first : offset - first + nbytes]

    def write(self, offset: int, pieces: Sequence[NDArray[np.uint8]]) -> None:
        """Writes ``pieces``, not all empty, one behind the other from ``offset`` on.

        Blocks covered in part are read first and written as a whole. After a failure the blocks are
        undefined. Raises what :meth:`read` raises.
        """
        nbytes = sum(len(piece) for piece in pieces)
        first, buffer = _blocks(offset, nbytes)
        edges = {0} if offset % BLOCK_BYTES else set[int]()
        if (offset + nbytes) % BLOCK_BYTES:
            edges.add(len(buffer) - BLOCK_BYTES)
        with self._lock:
            self._begin()
            for edge in edges:
                self.file.read(first + edge, buffer[edge : edge + BLOCK_BYTES])
            np.concatenate(pieces, out=buffer[offset - first : offset - first + nbytes])
            self.file.write(first, buffer)
            self._bytes_written += nbytes

    def close(self) -> None:
        """Closes the file, which unlocks it, once no transfer is in progress."""
        with self._lock:
            self._closed = True
            self.file.close()

    def _begin(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.file.path} was closed", path=self.file.path)
        self._operations += 1


def _blocks(offset: int, nbytes: int) -> tuple[int, NDArray[np.uint8]]:
    """Where the first block of the range starts, and a buffer for all its blocks."""
    first = offset // BLOCK_BYTES * BLOCK_BYTES
    return first, zeroed_pages(-(-(offset + nbytes - first) // BLOCK_BYTES) * BLOCK_BYTES)
