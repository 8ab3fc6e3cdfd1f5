"""One registered storage: what is allocated on it, its bytes, and those that a failure lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sw_driver.errors import LostDataError, StorageChangedError, StorageIOError
from sw_driver.memory.allocator import Allocator
from sw_driver.memory.directio import BLOCK_BYTES, DirectFile, aligned_buffer
from sw_driver.memory.intervals import Intervals

__all__ = ["Storage", "StorageStatistics"]


@dataclass(frozen=True, kw_only=True)
class StorageStatistics:
    """What has been done with a registered storage."""

    path: str
    """Absolute."""
    direct: bool
    """Whether transfers go past the page cache."""
    block_bytes: int
    """Logical block of the device; for a file, the block size that its file system states."""
    capacity_bytes: int
    """What can be allocated when nothing is, a multiple of 4096."""
    free_bytes: int
    """Not allocated."""
    largest_free_bytes: int
    """Of the largest allocation that would succeed."""
    allocations: int
    """Those that have a share here, not yet freed."""
    operations: int
    """Reads and writes begun, failed ones among them; of a striped copy, those here."""
    bytes_read: int
    """By reads that succeeded, without what alignment adds."""
    bytes_written: int
    """That reached the storage, without what alignment adds."""
    lost_bytes: int
    """That failures left undefined, in allocations not yet freed."""


class Storage:
    """Bytes at any offset of a file or device that transfers whole blocks.

    A write replaces the first and last block, where it covers them in part, as a whole: it reads
    them first, and writes to one block take turns. Writes at once of ranges that overlap leave one
    or the other in each byte; in a block that one of them covers in part, the old byte too.

    Any thread may call.

    Lost bytes
        After a write that failed, each byte of its range either is what was to be written or is
        lost; and bytes next to the range, if they share a block with it whose writing was begun,
        are lost as well, as it is undefined what that block holds. All other bytes are as they
        were. Of a file that has become shorter, what was cut off of allocations is lost. Lost bytes
        cannot be read until they are written again; freeing the allocation forgets them.
    """

    def __init__(self, file: DirectFile) -> None:
        self.file = file
        self._allocator = Allocator(limit_bytes=file.capacity_bytes, granule_bytes=BLOCK_BYTES)
        self._lost = Intervals()
        self._operations = 0
        self._bytes_read = 0
        self._bytes_written = 0
        # Of the fields above, and never held while the file is used.
        self._lock = threading.Lock()
        # Held by the one write that replaces a block in part.
        self._partial_block = threading.Lock()

    def statistics(self) -> StorageStatistics:
        """Takes the statistics."""
        with self._lock:
            memory = self._allocator.statistics()
            return StorageStatistics(
                path=self.file.path,
                direct=self.file.direct,
                block_bytes=self.file.block_bytes,
                capacity_bytes=memory.total_bytes,
                free_bytes=memory.free_bytes,
                largest_free_bytes=memory.largest_free_bytes,
                allocations=memory.allocations,
                operations=self._operations,
                bytes_read=self._bytes_read,
                bytes_written=self._bytes_written,
                lost_bytes=self._lost.total,
            )

    def lost_within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The ranges of lost bytes from ``start`` to ``end``, ascending."""
        with self._lock:
            return self._lost.within(start, end)

    def allocate(self, nbytes: int) -> int:
        """Allocates whole blocks; raises :class:`~sw_driver.errors.OutOfMemoryError`."""
        with self._lock:
            return self._allocator.allocate(nbytes)

    def free(self, address: int) -> None:
        """Frees what :meth:`allocate` returned."""
        with self._lock:
            size = self._allocator.free(address)
            self._lost.remove(address, address + size)

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """``nbytes`` bytes, at least one, from ``offset`` on.

        Raises :class:`~sw_driver.errors.LostDataError`,
        :class:`~sw_driver.errors.StorageChangedError`,
        :class:`~sw_driver.errors.StorageIOError`.
        """
        end = offset + nbytes
        first = offset // BLOCK_BYTES * BLOCK_BYTES
        buffer = aligned_buffer(_round_up(end) - first)
        with self._lock:
            self._operations += 1
        self._check_size()
        with self._lock:
            lost = self._lost.within(offset, end)
        if lost:
            low, high = lost[0]
            raise LostDataError(
                f"bytes {low:#x} to {high:#x} of {self.file.path} are undefined, as a write there "
                "failed or the file was cut off: write them again first",
                path=self.file.path,
                offset=low,
                nbytes=high - low,
            )
        try:
            self.file.read(first, buffer)
        except StorageIOError:
            self._check_size()
            raise
        with self._lock:
            self._bytes_read += nbytes
        return buffer[offset - first : end - first]

    def write(self, offset: int, pieces: Sequence[NDArray[np.uint8]], share_end: int) -> None:
        """Writes ``pieces``, not all empty, one behind the other from ``offset`` on.

        The allocation's share ends at ``share_end``; behind it, up to the end of the block, zeros
        are written.

        Raises :class:`~sw_driver.errors.StorageChangedError`,
        :class:`~sw_driver.errors.StorageIOError`.
        """
        end = offset + sum(len(piece) for piece in pieces)
        first = offset // BLOCK_BYTES * BLOCK_BYTES
        buffer = aligned_buffer(_round_up(end) - first)
        np.concatenate(pieces, out=buffer[offset - first : end - first])
        done = offset
        try:
            with self._lock:
                self._operations += 1
            self._check_size()
            for written in self._write(offset, end, share_end, buffer):
                done = written
        except BaseException as error:  # whatever it is, what was not written is lost
            with self._lock:
                self._lost.add(done, end)
            if isinstance(error, StorageIOError):
                self._check_size()
            raise
        finally:
            with self._lock:
                self._bytes_written += done - offset

    def close(self) -> None:
        """As :meth:`DirectFile.close`."""
        self.file.close()

    def _write(
        self, offset: int, end: int, share_end: int, buffer: NDArray[np.uint8]
    ) -> Iterator[int]:
        """Writes in steps, and yields after each up to where all is written."""
        first = offset // BLOCK_BYTES * BLOCK_BYTES
        whole_from = _round_up(offset)
        whole_to = _round_up(end) if end == share_end else end // BLOCK_BYTES * BLOCK_BYTES
        if offset < whole_from:
            stop = min(end, whole_from)
            self._write_partial_block(offset, buffer[offset - first : stop - first], share_end)
            yield stop
        if whole_from < whole_to:
            blocks = buffer[whole_from - first : whole_to - first]
            for written in self.file.write(whole_from, blocks):
                with self._lock:
                    self._lost.remove(whole_from, whole_from + written)
                yield min(whole_from + written, end)
        if max(whole_from, whole_to) < end:
            self._write_partial_block(whole_to, buffer[whole_to - first : end - first], share_end)
            yield end

    def _write_partial_block(self, start: int, data: NDArray[np.uint8], share_end: int) -> None:
        first = start // BLOCK_BYTES * BLOCK_BYTES
        end = start + len(data)
        block = aligned_buffer(BLOCK_BYTES)
        with self._partial_block:
            self.file.read(first, block)
            block[start - first : end - first] = data
            try:
                for _ in self.file.write(first, block):
                    pass
            except BaseException:
                with self._lock:
                    self._lost.add(first, min(first + BLOCK_BYTES, share_end))
                raise
            # Before another writer of the block may fail, which loses these bytes again.
            with self._lock:
                self._lost.remove(start, end)

    def _check_size(self) -> None:
        size = self.file.size_bytes()
        if size >= self.file.capacity_bytes:
            return
        with self._lock:
            for address, nbytes in self._allocator.allocations.items():
                self._lost.add(max(address, size), address + nbytes)
        raise StorageChangedError(
            f"{self.file.path} has {size} bytes, it had {self.file.capacity_bytes} when it was "
            "registered: what was cut off is lost; enlarge it again to go on with the rest",
            path=self.file.path,
            size_bytes=size,
            capacity_bytes=self.file.capacity_bytes,
        )


def _round_up(offset: int) -> int:
    return -(-offset // BLOCK_BYTES) * BLOCK_BYTES
