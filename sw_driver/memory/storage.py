"""One registered storage: a file or device that one process has for itself, in whole blocks."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.errors import ClosedError, DeviceInUseError, StorageError
from sw_driver.memory.allocator import Allocator, MemoryStatistics
from sw_driver.memory.hostbuffer import zeroed_pages
from sw_driver.memory.timing import LinkTiming
from sw_driver.runtime.schedule import Schedule

__all__ = ["BLOCK_BYTES", "Storage", "StorageStatistics"]

BLOCK_BYTES = 4096
"""Bytes of a block: what is read or written is a multiple of it, at a multiple of it.

It is a page and at least the logical block of all usual drives, as ``O_DIRECT`` asks for.
"""


@dataclass(frozen=True, kw_only=True)
class StorageStatistics(MemoryStatistics):
    """What is allocated on a registered storage, and what has been done with it."""

    path: str
    """Absolute path of the file or block device."""
    direct: bool
    """Whether transfers go past the page cache."""
    bytes_read: int
    """Bytes moved by reads that succeeded, without what alignment adds."""
    bytes_written: int
    """Bytes moved by writes that succeeded, without what alignment adds."""


class Storage:
    """A regular file or block device, locked: bytes at any offset of it, and its time.

    It is opened with ``O_DIRECT`` where the file system allows that, otherwise with ``O_DSYNC``, so
    that either way a write that failed is reported by the call that wrote. The lock (``flock``; of
    a block device also ``O_EXCL``, which refuses mounted ones) holds until :meth:`close` or the end
    of the process and of those forked from it.

    Any thread may transfer, one at a time; whoever allocates holds a lock.

    Parameters
    ----------
    path: path of the file or block device.
    capacity_bytes: to be used of it, whole blocks of :data:`BLOCK_BYTES`. A file that does not
        exist is created, a shorter one is extended. None: all there is.
    timing, schedule: what its transfers take and occupy in simulated time.

    Raises
    ------
    StorageError: it is missing, of another kind, too small or not accessible.
    DeviceInUseError: it is locked, mounted or otherwise in use.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        capacity_bytes: int | None,
        timing: LinkTiming,
        schedule: Schedule,
    ) -> None:
        self.timing = timing
        self.schedule = schedule
        try:
            self._path = os.path.abspath(os.fsdecode(path))
            with ExitStack() as undo:
                self._file, self._direct = _opened(self._path, create=capacity_bytes is not None)
                undo.callback(self._file.close)
                descriptor = self._file.fileno()
                # Of a block device fstat does not tell it. Nothing uses the position.
                size = os.lseek(descriptor, 0, os.SEEK_END)
                least = BLOCK_BYTES if capacity_bytes is None else capacity_bytes
                if size < least and capacity_bytes and stat.S_ISREG(os.fstat(descriptor).st_mode):
                    os.ftruncate(descriptor, size := capacity_bytes)
                if size < least:
                    raise StorageError(
                        f"{self._path!r} has {size} bytes, expected at least {least}: enlarge it, "
                        "or give another capacity_bytes",
                        path=self._path,
                        size_bytes=size,
                        capacity_bytes=capacity_bytes,
                    )
                undo.pop_all()
        except (OSError, TypeError, ValueError) as error:
            raise _refusal(path, error) from error
        limit_bytes = (capacity_bytes or size) // BLOCK_BYTES * BLOCK_BYTES
        self.allocator = Allocator(limit_bytes=limit_bytes, granule_bytes=BLOCK_BYTES)
        self._bytes_read = 0
        self._bytes_written = 0
        self._lock = threading.Lock()

    def statistics(self) -> StorageStatistics:
        """Takes the statistics."""
        return StorageStatistics(
            **vars(self.allocator.statistics()),
            path=self._path,
            direct=self._direct,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
        )

    def read(self, offset: int, destination: NDArray[np.uint8]) -> None:
        """Fills ``destination``, which is not empty, with the bytes from ``offset`` on.

        Raises :class:`~sw_driver.errors.StorageError`, :class:`~sw_driver.errors.ClosedError`.
        """
        first, blocks = _blocks(offset, destination.size)
        with self._lock:
            self._move("read", os.preadv, first, blocks)
            self._bytes_read += destination.size
        destination[:] = blocks[offset - first : offset - first + destination.size]

    def write(self, offset: int, source: NDArray[np.uint8]) -> None:
        """Writes ``source``, which is not empty, to ``offset`` and on.

        Blocks covered in part are read first and written as a whole. Raises what :meth:`read`
        raises; the blocks are undefined then.
        """
        first, blocks = _blocks(offset, source.size)
        begin, end = offset - first, offset - first + source.size
        edges = {0} if begin else set[int]()
        if end < blocks.size:
            edges.add(blocks.size - BLOCK_BYTES)
        with self._lock:
            for edge in edges:
                self._move("read", os.preadv, first + edge, blocks[edge : edge + BLOCK_BYTES])
            blocks[begin:end] = source
            self._move("write", os.pwritev, first, blocks)
            self._bytes_written += source.size

    def close(self) -> None:
        """Unlocks and closes the file, once no transfer is in progress. Again, it does nothing."""
        with self._lock:
            if not self._file.closed:
                # A forked process has the lock, too, and may go on for longer.
                fcntl.flock(self._file, fcntl.LOCK_UN)
                self._file.close()

    def _move(
        self, verb: str, call: Callable[..., int], offset: int, blocks: NDArray[np.uint8]
    ) -> None:
        if self._file.closed:
            raise ClosedError(f"{self._path} was closed", path=self._path)
        try:
            moved = call(self._file.fileno(), [blocks], offset)
            if moved < blocks.size:
                raise OSError(None, f"only {moved} were moved, as the disk is full or the file cut")
        except OSError as error:
            raise StorageError(
                f"{verb} of {blocks.size} bytes at {offset:#x} of {self._path}: {error.strerror}",
                path=self._path,
                offset=offset,
                errno=error.errno,
            ) from error


def _blocks(offset: int, nbytes: int) -> tuple[int, NDArray[np.uint8]]:
    """Where the first block of the range starts, and a buffer for all its blocks."""
    first = offset // BLOCK_BYTES * BLOCK_BYTES
    return first, zeroed_pages(-(-(offset + nbytes - first) // BLOCK_BYTES) * BLOCK_BYTES)


def _opened(path: str, *, create: bool) -> tuple[FileIO, bool]:
    """The open and locked file, and whether transfers go past the page cache."""
    flags = os.O_CREAT
    if not create or os.path.exists(path):
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise StorageError(
                f"{path!r} is neither a regular file nor a block device such as /dev/nvme0n1",
                path=path,
            )
        flags = os.O_EXCL if stat.S_ISBLK(mode) else 0
    try:
        return _locked(path, flags | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return _locked(path, flags | os.O_DSYNC), False


def _locked(path: str, flags: int) -> FileIO:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    file: Any = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Some file systems accept O_DIRECT and then refuse to read.
        os.preadv(descriptor, [zeroed_pages(BLOCK_BYTES)], 0)  # type: ignore[list-item]
    except BaseException:
        file.close()
        raise
    return file


def _refusal(path: Any, error: Exception) -> StorageError | DeviceInUseError:
    number = getattr(error, "errno", None)
    if number in (errno.EWOULDBLOCK, errno.EBUSY):
        return DeviceInUseError(
            f"{str(path)!r} is in use: it is registered already, by this or another process "
            "(lslocks tells), or mounted; close or unmount it there first",
            path=str(path),
            errno=number,
        )
    advice = ""
    if isinstance(error, FileNotFoundError):
        advice = "; give a path that exists, or capacity_bytes to create a file in a folder"
    return StorageError(
        f"{str(path)!r} cannot be used as storage: {getattr(error, 'strerror', None) or error}"
        f"{advice}",
        path=str(path),
        errno=number,
    )
