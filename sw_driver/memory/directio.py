"""Reads and writes, past the page cache, of a file or device that one process has for itself."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import stat
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.errors import (
    ClosedError,
    NoSuchStorageError,
    StorageInUseError,
    StorageIOError,
)

__all__ = ["BLOCK_BYTES", "DirectFile", "aligned_buffer", "identify"]

BLOCK_BYTES = 4096
"""What is read or written is a multiple of this, at a multiple of this.

It is a page and at least the logical block of all usual drives, as ``O_DIRECT`` asks for.
"""

ATTEMPTS = 100
"""So many system calls in a row may fail to get ahead, or be interrupted, before it is an error."""

CLOSE_TIMEOUT_S = 30.0

_BLKSSZGET = 0x1268
"""The request of ``ioctl`` for the logical block size of a block device (linux/fs.h)."""

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
}


def aligned_buffer(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed memory that starts on a page, as ``O_DIRECT`` asks for; ``nbytes`` at least 1."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype=np.uint8)


def identify(path: str) -> tuple[str, int, int]:
    """Equal for two paths exactly if they lead to the same file or block device.

    Raises :class:`~sw_driver.errors.NoSuchStorageError` for anything else.
    """
    try:
        return _identity(path, os.stat(path))
    except (OSError, ValueError) as error:
        advice = ""
        if isinstance(error, FileNotFoundError):
            advice = (
                f": it is a symbolic link to {os.path.realpath(path)!r}; create that, or give "
                "another path"
                if os.path.islink(path)
                else "; give the path of a file or block device, or capacity_bytes to create a file"
            )
        raise NoSuchStorageError(
            f"{path!r} cannot be used as storage: {_reason(error)}{advice}",
            path=path,
            errno=getattr(error, "errno", None),
        ) from error


def _identity(path: str, status: os.stat_result) -> tuple[str, int, int]:
    if stat.S_ISREG(status.st_mode):
        return "file", status.st_dev, status.st_ino
    if stat.S_ISBLK(status.st_mode):
        return "block device", status.st_rdev, 0
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "of an unknown kind")
    raise NoSuchStorageError(
        f"{path!r} is {kind}: storage is a regular file or a block device such as /dev/nvme0n1",
        path=path,
        kind=kind,
    )


def _reason(error: Exception, end: int | None = None) -> str:
    """Why ``error`` came; ``end`` is up to where a regular file was to be written or extended."""
    reason = getattr(error, "strerror", None) or str(error)
    # A direct write that the limit would shorten to less than a block is invalid, not too large.
    if end is not None and getattr(error, "errno", None) in (errno.EFBIG, errno.EINVAL):
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY and end > limit:
            reason += (
                f"; this process may write files of at most {limit} bytes (RLIMIT_FSIZE, see "
                "ulimit -f)"
            )
    return reason


class DirectFile:
    """A regular file or block device, locked, and transfers of whole blocks.

    It is opened with ``O_DIRECT`` where the file system allows that, otherwise with ``O_DSYNC``,
    so that either way a write that failed is reported by the call that wrote. The lock (``flock``;
    of a block device also ``O_EXCL``, which refuses mounted ones) holds until :meth:`close` or the
    end of the process, however it ends. A forked child has the file closed from the start.

    Any thread may call.

    Parameters
    ----------
    path: of the file or block device.
    capacity_bytes: to be used of it. A file that does not exist is created, a shorter one is
        extended, and room on its file system is reserved where that supports it. By default all
        there is. Either way whole blocks of :data:`BLOCK_BYTES`.

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
        self._idle = threading.Condition()
        self._users = 0
        self._closing = False
        self._file: Any = None
        created = capacity_bytes is not None and _create(path)
        try:
            self.identity = identify(path)
            self._open(capacity_bytes)
        except NoSuchStorageError:
            if created:
                os.unlink(path)
            raise
        _open_files.add(self)

    @property
    def direct(self) -> bool:
        """Whether transfers go past the page cache."""
        return self._direct

    @property
    def capacity_bytes(self) -> int:
        """What may be used, a multiple of :data:`BLOCK_BYTES`."""
        return self._capacity_bytes

    @property
    def block_bytes(self) -> int:
        """Logical block of the device; for a file, the block size that its file system states."""
        return self._block_bytes

    def size_bytes(self) -> int:
        """The size of the file or device now.

        Raises :class:`~sw_driver.errors.StorageIOError` if it cannot be told, also because the
        descriptor was closed by somebody else and has come to mean another file.
        """
        with self._descriptor() as descriptor:
            try:
                status = os.fstat(descriptor)
                same = _identity(self.path, status) == self.identity
                size = self._size(descriptor)
            except (OSError, NoSuchStorageError) as error:
                raise StorageIOError(
                    f"the size of {self.path} cannot be told: {_reason(error)}",
                    path=self.path,
                    errno=getattr(error, "errno", None),
                ) from error
        if not same:
            raise StorageIOError(
                f"descriptor {descriptor} of {self.path} has come to mean another file: something "
                "else in the process closed it",
                path=self.path,
                descriptor=descriptor,
            )
        return size

    def read(self, offset: int, buffer: NDArray[np.uint8]) -> None:
        """Fills ``buffer``, an aligned one of whole blocks, from ``offset`` on.

        Raises :class:`~sw_driver.errors.StorageIOError`.
        """
        for _ in self._move("read", offset, buffer):
            pass

    def write(self, offset: int, buffer: NDArray[np.uint8]) -> Iterator[int]:
        """Writes ``buffer``, an aligned one of whole blocks, to ``offset`` and on, in steps.

        After each step it yields how many bytes from the start on are written, in whole blocks.

        Raises :class:`~sw_driver.errors.StorageIOError`; what was not written then is undefined.
        """
        return self._move("write", offset, buffer)

    def close(self) -> None:
        """Closes the file, which unlocks it, once no transfer is in progress.

        It waits for transfers for 30 s; the last of those that take longer closes the file. New
        ones are refused with :class:`~sw_driver.errors.ClosedError`. Closing twice does no harm.
        """
        with self._idle:
            self._closing = True
            if self._idle.wait_for(lambda: not self._users, timeout=CLOSE_TIMEOUT_S):
                self._close_file()

    def _open(self, capacity_bytes: int | None) -> None:
        try:
            try:
                self._direct = True
                self._open_with(os.O_DIRECT, capacity_bytes)
                # Some file systems accept the flag and then refuse to read.
                block: Any = aligned_buffer(BLOCK_BYTES)
                os.preadv(self._file.fileno(), [block], 0)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._close_file()
                self._direct = False
                self._open_with(os.O_DSYNC, capacity_bytes)
        except OSError as error:
            self._close_file()
            raise self._refused(error) from error
        except BaseException:
            self._close_file()
            raise

    def _open_with(self, flag: int, capacity_bytes: int | None) -> None:
        is_device = self.identity[0] == "block device"
        flags = os.O_RDWR | os.O_CLOEXEC | flag | (os.O_EXCL if is_device else 0)
        self._file = os.fdopen(os.open(self.path, flags), "r+b", buffering=0)
        descriptor = self._file.fileno()
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Since the path was looked up it may have come to lead elsewhere.
        status = os.fstat(descriptor)
        self.identity = _identity(self.path, status)
        size = self._size(descriptor)
        if capacity_bytes is not None:
            if not is_device:
                self._reserve(descriptor, capacity_bytes, status)
                size = self._size(descriptor)
            if size < capacity_bytes:
                raise NoSuchStorageError(
                    f"{self.path!r} has {size} bytes, less than the capacity_bytes of "
                    f"{capacity_bytes}",
                    path=self.path,
                    size_bytes=size,
                    capacity_bytes=capacity_bytes,
                )
            size = capacity_bytes
        self._capacity_bytes = size // BLOCK_BYTES * BLOCK_BYTES
        if not self._capacity_bytes:
            raise NoSuchStorageError(
                f"{self.path!r} has {size} bytes: storage has at least {BLOCK_BYTES}; enlarge it, "
                "or give capacity_bytes",
                path=self.path,
                size_bytes=size,
            )
        self._block_bytes = status.st_blksize
        if is_device:
            answer = fcntl.ioctl(descriptor, _BLKSSZGET, bytes(4))
            self._block_bytes = struct.unpack("i", answer)[0]

    def _reserve(self, descriptor: int, capacity_bytes: int, status: os.stat_result) -> None:
        """Gives a file at least this size, and blocks on the disk to all of it.

        So a full file system is found here and not by a write much later.
        """
        system = os.fstatvfs(descriptor)
        room = system.f_bavail * system.f_frsize + status.st_blocks * 512
        try:
            if room < capacity_bytes:
                raise OSError(errno.ENOSPC, f"its file system has room for {room}")
            try:
                os.posix_fallocate(descriptor, 0, capacity_bytes)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                # The file system cannot reserve: the file is sparse, writes may find no room.
                os.ftruncate(descriptor, max(status.st_size, capacity_bytes))
        except OSError as error:
            os.ftruncate(descriptor, status.st_size)
            raise NoSuchStorageError(
                f"{self.path!r} cannot have {capacity_bytes} bytes: "
                f"{_reason(error, capacity_bytes)}",
                path=self.path,
                capacity_bytes=capacity_bytes,
                room_bytes=room,
                errno=error.errno,
            ) from error

    def _refused(self, error: OSError) -> NoSuchStorageError | StorageInUseError:
        if error.errno == errno.EWOULDBLOCK:
            holder = _lock_holder(self.path)
            who = {
                None: "another process, or another device of this one",
                os.getpid(): "another device of this process",
            }.get(holder, f"process {holder}")
            return StorageInUseError(
                f"{self.path!r} is in use: it is locked by {who}; close it there first",
                path=self.path,
                errno=error.errno,
                pid=holder,
            )
        if error.errno == errno.EBUSY:
            return StorageInUseError(
                f"{self.path!r} is in use: it is mounted, or the system or a process has it for "
                "itself; unmount or close it first",
                path=self.path,
                errno=error.errno,
            )
        return NoSuchStorageError(
            f"{self.path!r} cannot be opened for reading and writing: {_reason(error)}",
            path=self.path,
            errno=error.errno,
        )

    def _size(self, descriptor: int) -> int:
        # Of a block device fstat does not tell it. Nothing uses the position that this changes.
        return os.lseek(descriptor, 0, os.SEEK_END)

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        with self._idle:
            if self._closing:
                raise ClosedError(f"{self.path} was closed", path=self.path)
            self._users += 1
        try:
            yield self._file.fileno()
        finally:
            with self._idle:
                self._users -= 1
                self._idle.notify_all()
                if self._closing and not self._users:
                    self._close_file()

    def _move(self, verb: str, offset: int, buffer: NDArray[np.uint8]) -> Iterator[int]:
        call: Any = os.preadv if verb == "read" else os.pwritev
        # Direct transfers go on only from a block's start: of a block that moved in part the
        # beginning is moved again.
        step_bytes = BLOCK_BYTES if self._direct else 1
        done = without_progress = 0
        with self._descriptor() as descriptor:
            while done < len(buffer):
                try:
                    moved = call(descriptor, [buffer[done:]], offset + done)
                except InterruptedError as error:
                    moved, reason = 0, _reason(error)
                    without_progress += 1
                except OSError as error:
                    raise self._failed(verb, offset, buffer, done, error) from error
                else:
                    without_progress = without_progress + 1 if moved else ATTEMPTS
                    reason = f"the last call moved {moved} bytes"
                moved -= moved % step_bytes
                if moved:
                    without_progress = 0
                    done += moved
                    yield done - done % BLOCK_BYTES
                elif without_progress >= ATTEMPTS:
                    raise self._failed(verb, offset, buffer, done, OSError(None, reason))

    def _failed(
        self, verb: str, offset: int, buffer: NDArray[np.uint8], done: int, error: OSError
    ) -> StorageIOError:
        # Only what is written, and only to a file, has a limit.
        limited = verb == "write" and self.identity[0] == "file"
        reason = _reason(error, offset + len(buffer) if limited else None)
        return StorageIOError(
            f"{verb} of {len(buffer)} bytes at {offset:#x} of {self.path} moved {done}: {reason}",
            path=self.path,
            offset=offset,
            wanted_bytes=len(buffer),
            moved_bytes=done,
            errno=error.errno,
        )

    def _close_file(self) -> None:
        # A descriptor that somebody else closed must not keep other files from being closed.
        with suppress(OSError):
            if self._file:
                self._file.close()

    def _close_in_child(self) -> None:
        self._idle = threading.Condition()  # the other may be held by a thread that is not here
        self._closing = True
        self._close_file()


def _create(path: str) -> bool:
    """Creates an empty file; False if there is something already, also a link to nothing.

    Raises :class:`~sw_driver.errors.NoSuchStorageError`.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except (OSError, ValueError) as error:
        folder = os.path.dirname(path)
        advice = (
            f"; create the folder {folder!r} first"
            if isinstance(error, FileNotFoundError) and not os.path.exists(folder)
            else "; give another path, or see to it that its folder can be written"
        )
        raise NoSuchStorageError(
            f"{path!r} cannot be created: {_reason(error)}{advice}",
            path=path,
            errno=getattr(error, "errno", None),
        ) from error
    return True


def _lock_holder(path: str) -> int | None:
    """The process that has locked the file; None if the system does not say (proc(5), locks)."""
    with suppress(OSError, ValueError):
        status = os.stat(path)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                fields = line.split()
                if fields[1] == "FLOCK" and fields[5] == f"{device}:{status.st_ino}":
                    pid = int(fields[4])
                    return pid if pid > 0 else None  # not to be seen from here
    return None


_open_files: weakref.WeakSet[DirectFile] = weakref.WeakSet()


def _close_all_in_child() -> None:
    # A child that kept the descriptors would keep the locks beyond the end of this process.
    for file in list(_open_files):
        file._close_in_child()


os.register_at_fork(after_in_child=_close_all_in_child)
