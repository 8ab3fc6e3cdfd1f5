"""Reads and writes, past the page cache, of a file or device that one process has for itself."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.errors import (
    NoSuchStorageError,
    StorageChangedError,
    StorageInUseError,
    StorageIOError,
)
from sw_driver.memory.hostbuffer import zeroed_pages

__all__ = ["BLOCK_BYTES", "DirectFile"]

BLOCK_BYTES = 4096
"""What is read or written is a multiple of this, at a multiple of this.

It is a page and at least the logical block of all usual drives, as ``O_DIRECT`` asks for.
"""


class DirectFile:
    """A regular file or block device, locked, and transfers of whole blocks.

    It is opened with ``O_DIRECT`` where the file system allows that, otherwise with ``O_DSYNC``,
    so that either way a write that failed is reported by the call that wrote. The lock (``flock``;
    of a block device also ``O_EXCL``, which refuses mounted ones) holds until :meth:`close` or the
    end of the process and of those forked from it.

    Not safe for use by several threads at once.

    Parameters
    ----------
    path: of the file or block device.
    capacity_bytes: to be used of it, whole blocks of :data:`BLOCK_BYTES`. A file that does not
        exist is created, a shorter one is extended, and room on its file system is reserved where
        that supports it. By default all there is.

    Raises
    ------
    NoSuchStorageError
        It is missing, of another kind, too small, not accessible, or there is no room for it. A
        file that was created for this is removed again.
    StorageInUseError
        It is locked, mounted or otherwise in use.
    """

    def __init__(self, path: str, *, capacity_bytes: int | None = None) -> None:
        self.path = path
        self.direct: bool
        """Whether transfers go past the page cache."""
        self.capacity_bytes: int
        """What may be used, a multiple of :data:`BLOCK_BYTES`."""
        self.status: os.stat_result
        """Of the file when it was opened."""
        try:
            with ExitStack() as undo:
                created = capacity_bytes is not None and not os.path.exists(path)
                flags = os.O_CREAT if created else _flags_for(path)
                self._file, self.direct = _open(path, flags)
                undo.callback(self._file.close)
                if created:
                    undo.callback(os.unlink, os.path.realpath(path))
                self.status = os.fstat(self._file.fileno())
                if capacity_bytes is not None and stat.S_ISREG(self.status.st_mode):
                    _reserve(self._file.fileno(), self.status.st_size, capacity_bytes)
                self._smallest_bytes = self._size()
                self.capacity_bytes = self._checked_capacity(capacity_bytes)
                undo.pop_all()
        except NoSuchStorageError:
            raise
        except (OSError, ValueError) as error:
            raise _refusal(path, error, capacity_bytes) from error

    def read(self, offset: int, buffer: NDArray[np.uint8]) -> None:
        """Fills ``buffer``, an aligned one of whole blocks, from ``offset`` on.

        Raises :class:`~sw_driver.errors.StorageChangedError`,
        :class:`~sw_driver.errors.StorageIOError`.
        """
        self._move("read", os.preadv, offset, buffer)

    def write(self, offset: int, buffer: NDArray[np.uint8]) -> None:
        """Writes ``buffer``, an aligned one of whole blocks, to ``offset`` and on.

        Raises :class:`~sw_driver.errors.StorageChangedError`, and
        :class:`~sw_driver.errors.StorageIOError`; what is there is undefined then.
        """
        self._move("write", os.pwritev, offset, buffer)

    def close(self) -> None:
        """Unlocks and closes the file. Closing twice does no harm."""
        if not self._file.closed:
            # A forked process has the lock, too, and may go on for longer.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()

    def _size(self) -> int:
        # Of a block device fstat does not tell it. Nothing uses the position that this changes.
        return os.lseek(self._file.fileno(), 0, os.SEEK_END)

    def _checked_capacity(self, capacity_bytes: int | None) -> int:
        size = self._smallest_bytes
        least = BLOCK_BYTES if capacity_bytes is None else capacity_bytes
        if size < least:
            raise NoSuchStorageError(
                f"{self.path!r} has {size} bytes, expected at least {least}: enlarge it, or give "
                "another capacity_bytes",
                path=self.path,
                size_bytes=size,
                capacity_bytes=capacity_bytes,
            )
        return (size if capacity_bytes is None else capacity_bytes) // BLOCK_BYTES * BLOCK_BYTES

    def _move(
        self, verb: str, call: Callable[..., int], offset: int, buffer: NDArray[np.uint8]
    ) -> None:
        done = 0
        try:
            self._smallest_bytes = min(self._smallest_bytes, self._size())
            if self._smallest_bytes < self.capacity_bytes:
                raise StorageChangedError(
                    f"{self.path} had {self.capacity_bytes} bytes when it was registered, and was "
                    f"cut off at {self._smallest_bytes}: it is not used any more; close the "
                    "device, and find who truncates the file",
                    path=self.path,
                    size_bytes=self._smallest_bytes,
                    capacity_bytes=self.capacity_bytes,
                )
            while done < len(buffer):
                moved = call(self._file.fileno(), [buffer[done:]], offset + done)
                if moved < BLOCK_BYTES:
                    raise OSError(None, f"the last call moved {moved} bytes")
                # Direct transfers go on only from a block's start: of a block that moved in part
                # the beginning is moved again.
                done += moved - moved % BLOCK_BYTES
        except OSError as error:
            raise StorageIOError(
                f"{verb} of {len(buffer)} bytes at {offset:#x} of {self.path} moved {done}: "
                f"{error.strerror}",
                path=self.path,
                offset=offset,
                wanted_bytes=len(buffer),
                moved_bytes=done,
                errno=error.errno,
            ) from error


def _flags_for(path: str) -> int:
    """Flags with which to open what is at ``path``."""
    mode = os.stat(path).st_mode
    if stat.S_ISBLK(mode):
        return os.O_EXCL
    if stat.S_ISREG(mode):
        return 0
    raise NoSuchStorageError(
        f"{path!r} is neither a regular file nor a block device such as /dev/nvme0n1", path=path
    )


def _open(path: str, flags: int) -> tuple[FileIO, bool]:
    """The open and locked file, and whether transfers go past the page cache."""

    def opened(flag: int) -> FileIO:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags | flag, 0o600)
        file: Any = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Some file systems accept the flag and then refuse to read.
            os.preadv(descriptor, [zeroed_pages(BLOCK_BYTES)], 0)  # type: ignore[list-item]
        except BaseException:
            file.close()
            raise
        return file

    try:
        return opened(os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return opened(os.O_DSYNC), False


def _reserve(descriptor: int, size: int, capacity_bytes: int) -> None:
    """Gives a file at least this size, and blocks on the disk to all of it.

    So a full file system is found here and not by a write much later.
    """
    try:
        os.posix_fallocate(descriptor, 0, capacity_bytes)
    except OSError as error:
        # The file system cannot reserve: the file is sparse, writes may find no room.
        sparse = error.errno in (errno.EINVAL, errno.EOPNOTSUPP)
        os.ftruncate(descriptor, max(size, capacity_bytes) if sparse else size)
        if not sparse:
            raise


def _refusal(
    path: str, error: OSError | ValueError, capacity_bytes: int | None
) -> NoSuchStorageError | StorageInUseError:
    number = getattr(error, "errno", None)
    if number == errno.EWOULDBLOCK:
        return StorageInUseError(
            f"{path!r} is in use: another process, or another device of this one, has locked it "
            "(lslocks tells); close it there first",
            path=path,
            errno=number,
        )
    if number == errno.EBUSY:
        return StorageInUseError(
            f"{path!r} is in use: it is mounted, or the system or a process has it for itself; "
            "unmount or close it first",
            path=path,
            errno=number,
        )
    advice = ""
    if isinstance(error, FileNotFoundError):
        advice = (
            "; give the path of a file or block device, or capacity_bytes to create a file"
            if capacity_bytes is None
            else f"; create the folder {os.path.dirname(path)!r} first"
        )
    return NoSuchStorageError(
        f"{path!r} cannot be used as storage: {getattr(error, 'strerror', None) or error}{advice}",
        path=path,
        errno=number,
        capacity_bytes=capacity_bytes,
    )
