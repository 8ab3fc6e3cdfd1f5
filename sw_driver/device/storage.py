"""NVMe storage: registered files and block devices as a memory (paper section 4.2, Table 2)."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.device.errors import (
    ClosedError,
    DeviceInUseError,
    InvalidArgumentError,
    OutOfMemoryError,
    StorageError,
)
from sw_driver.device.link import Leg, Link, LinkTiming
from sw_driver.device.memory import (
    AllocationTable,
    Allocator,
    MemoryStatistics,
    NvmePointer,
    Pointer,
    checked_channel,
    checked_size,
)
from sw_driver.device.tensors import zeroed_pages

__all__ = [
    "BLOCK_BYTES",
    "STRIPED",
    "STRIPE_BYTES",
    "NvmeStorage",
    "Storage",
    "StorageStatistics",
    "share_bytes",
    "stripes",
]

STRIPE_BYTES = 128 * 1024
"""Bytes of a stripe unit, which lies in one piece on a storage."""


def stripes(start: int, end: int, members: int) -> Iterator[tuple[int, int, int]]:
    """The pieces of an allocation's bytes from ``start`` to ``end``, in their order.

    Of each the number of its storage of ``members``, where it begins in the share that the
    allocation has there, and its size.
    """
    while start < end:
        unit, within = divmod(start, STRIPE_BYTES)
        nbytes = min(STRIPE_BYTES - within, end - start) if members > 1 else end - start
        yield unit % members, share_bytes(start, unit % members, members), nbytes
        start += nbytes


def share_bytes(end: int, member: int, members: int) -> int:
    """How many of the first ``end`` bytes are on storage ``member`` of ``members``."""
    rounds, rest = divmod(end, STRIPE_BYTES * members)
    return rounds * STRIPE_BYTES + min(max(rest - member * STRIPE_BYTES, 0), STRIPE_BYTES)


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

    Calls must not overlap.

    Parameters
    ----------
    path: path of the file or block device.
    capacity_bytes: to be used of it, whole blocks of :data:`BLOCK_BYTES`. A file that does not
        exist is created, a shorter one is extended. None: all there is.
    timing, link: what its transfers take and occupy in simulated time.

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
        link: Link,
    ) -> None:
        self.timing = timing
        self.link = link
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
        self.allocator = Allocator(
            limit_bytes=limit_bytes, granule_bytes=BLOCK_BYTES, setting="its capacity_bytes"
        )
        self._bytes_read = 0
        self._bytes_written = 0

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

        Raises :class:`~sw_driver.device.errors.StorageError`,
        :class:`~sw_driver.device.errors.ClosedError`.
        """
        first, blocks = _blocks(offset, destination.size)
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
        for edge in edges:
            self._move("read", os.preadv, first + edge, blocks[edge : edge + BLOCK_BYTES])
        blocks[begin:end] = source
        self._move("write", os.pwritev, first, blocks)
        self._bytes_written += source.size

    def close(self) -> None:
        """Unlocks and closes the file. Again, it does nothing."""
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


STRIPED = -1
"""The ``channel`` of pointers to memory that is striped over several storages."""


@dataclass
class _Placed:
    """Where an allocation is, and whether it can be used."""

    address: int
    """Byte address of the pointer to the allocation's start."""
    shares: Sequence[tuple[Storage, int]]
    """The storages that the allocation is on, and where its share begins on each."""
    failure: str | None = None
    """What a write to the allocation has failed with, if one has."""

    def pieces(
        self, start: int, data: NDArray[np.uint8]
    ) -> Iterator[tuple[Storage, int, NDArray[np.uint8]]]:
        """Storage, offset there and part of ``data``, which is the bytes from ``start`` on."""
        done = 0
        for member, offset, nbytes in stripes(start, start + data.size, len(self.shares)):
            storage, address = self.shares[member]
            yield storage, address + offset, data[done : done + nbytes]
            done += nbytes


class NvmeStorage:
    """The registered storages as one memory, see :class:`~sw_driver.device.memory.Memory`.

    An allocation is on one storage or striped over all that are registered at that time, in units
    of 128 KiB (:mod:`sw_driver.device.storage`); on each storage it has whole blocks of 4096
    bytes for itself. Its contents are undefined until they are written, and unlike a file's do not
    survive: nothing says after :meth:`close` what was where.

    Calls must not overlap.

    A read that fails leaves its destination as it was. After a write that fails, nobody knows what
    the allocation holds: it cannot be used any more, only freed. All others are as they were.

    Parameters
    ----------
    device: number of the opened device, which its pointers carry.
    timing: simulated time of the transfers of each storage, unless it is told otherwise.
    """

    name = "nvme"

    def __init__(self, *, device: int, timing: LinkTiming) -> None:
        self._timing = timing
        self.allocations = AllocationTable(NvmePointer, device=device, source="MallocNvme")
        self._storages: list[Storage] = []
        self._placed: dict[int, _Placed] = {}
        # Striped allocations are on no storage alone, so these addresses are theirs only.
        self._next_striped_address = 0
        self._closed = False

    @property
    def links(self) -> Sequence[Link]:
        """One link for each storage, named ``nvme0`` and so on."""
        return [each.link for each in self._storages]

    def register(
        self,
        path: str | os.PathLike[str],
        *,
        capacity_bytes: int | None = None,
        timing: LinkTiming | None = None,
    ) -> int:
        """Makes a regular file or block device a storage, and returns its number.

        What it contains is overwritten as memory on it is used. It is locked for this process until
        :meth:`close` or the end of the process, and of those forked from it, however they end.

        Parameters
        ----------
        path: path of the file or block device.
        capacity_bytes: how much of it to use, rounded down to 4096. A file that does not exist is
            created and one that is shorter extended, without taking room on the disk before it is
            written. By default all there is.
        timing: of its transfers; by default that of the memory.

        Raises
        ------
        StorageError
            It is missing, a directory, FIFO, socket or character device, cannot be opened for
            reading and writing or extended, or has less than 4096 bytes.
        DeviceInUseError
            It is registered already, under whatever name, or is locked or mounted.
        InvalidArgumentError
            ``capacity_bytes`` is not an integer of at least 4096.
        ClosedError
            After :meth:`close`.
        """
        self._check_open()
        if capacity_bytes is not None:
            capacity_bytes = checked_size("capacity_bytes", capacity_bytes, minimum=BLOCK_BYTES)
            capacity_bytes -= capacity_bytes % BLOCK_BYTES
        number = len(self._storages)
        self._storages.append(
            Storage(
                path,
                capacity_bytes=capacity_bytes,
                timing=timing or self._timing,
                link=Link(f"nvme{number}"),
            )
        )
        return number

    def statistics(self) -> list[StorageStatistics]:
        """Statistics of each storage. Also after :meth:`close`."""
        return [each.statistics() for each in self._storages]

    def allocate(self, nbytes: int, channel: int | None = None) -> NvmePointer:
        """Allocates ``nbytes`` bytes.

        Parameters
        ----------
        nbytes: at least 1.
        channel: number of a storage; None for all that are registered, with an equal share on each.

        Raises
        ------
        InvalidArgumentError
            ``nbytes`` is no size, ``channel`` no number of a storage, or none is registered.
        OutOfMemoryError, ClosedError
            As their names say.
        """
        self._check_open()
        nbytes = checked_size("nbytes", nbytes, minimum=1)
        numbers = self._numbers(channel)
        # The share of the first is the largest; the others get as much, so all stay alike.
        share = share_bytes(nbytes, 0, len(numbers))
        shares: list[tuple[Storage, int]] = []
        for number in numbers:
            storage = self._storages[number]
            try:
                shares.append((storage, storage.allocator.allocate(share)))
            except OutOfMemoryError as error:
                for each, address in shares:
                    each.allocator.free(address)
                raise OutOfMemoryError(
                    f"no room for {nbytes} bytes: on storage {number}, {error}",
                    **error.details | {"nbytes": nbytes, "storage": number},
                ) from None
        if len(shares) == 1:
            number, address = numbers[0], shares[0][1]
        else:
            number, address = STRIPED, self._next_striped_address
            self._next_striped_address += -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
        pointer = self.allocations.add(channel=number, address=address, nbytes=nbytes)
        self._placed[pointer.allocation] = _Placed(address, shares)
        return pointer

    def free(self, pointer: Any) -> None:
        """Frees an allocation.

        Raises what :meth:`~sw_driver.device.memory.AllocationTable.remove`
        raises, and :class:`~sw_driver.device.errors.ClosedError`.
        """
        self._check_open()
        for storage, address in self._placed.pop(self.allocations.remove(pointer).number).shares:
            storage.allocator.free(address)

    def read(self, pointer: Pointer, destination: NDArray[np.uint8]) -> None:
        """Fills ``destination`` from ``pointer`` on, or leaves it as it is and raises.

        Raises
        ------
        StorageError
            A write to the allocation has failed, or the system refused, or did not move all.
        PointerError, RangeError, ClosedError
            As their names say.
        """
        placed, start = self._find(pointer, destination.size)
        found = np.empty_like(destination)
        for storage, offset, piece in placed.pieces(start, found):
            storage.read(offset, piece)
        destination[:] = found

    def write(self, pointer: Pointer, source: NDArray[np.uint8]) -> None:
        """Writes ``source`` from ``pointer`` on; when it returns the storage has accepted all.

        Raises what :meth:`read` raises. After a :class:`~sw_driver.device.errors.StorageError` the
        allocation can only be freed.
        """
        placed, start = self._find(pointer, source.size)
        try:
            for storage, offset, piece in placed.pieces(start, source):
                storage.write(offset, piece)
        except BaseException as error:  # whatever it is, what is there is not known
            placed.failure = f"{type(error).__name__}: {error}"
            raise

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """A leg for each storage that has some of the bytes, for as long as its share takes."""
        placed, start = self._find(pointer, nbytes)
        members = len(placed.shares)
        legs = []
        for member, (storage, _) in enumerate(placed.shares):
            before, after = (share_bytes(at, member, members) for at in (start, start + nbytes))
            if after > before:
                duration = storage.timing.duration_ns(after - before, writing=writing)
                legs.append(Leg(storage.link, duration))
        return legs

    def close(self) -> None:
        """Closes all storages, which unlocks them."""
        self._closed = True
        for each in self._storages:
            each.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the storage was closed")

    def _numbers(self, channel: int | None) -> Sequence[int]:
        count = len(self._storages)
        if not count:
            raise InvalidArgumentError(
                "no storage is registered: call RegisterStorage with the path of a file or block "
                "device first",
                channel=channel,
                storages=0,
            )
        if channel is None:
            return range(count)
        return [checked_channel(channel, count, ", the number of a storage, or None for all")]

    def _find(self, pointer: Pointer, nbytes: int) -> tuple[_Placed, int]:
        """The allocation, which can be used, and where the range starts in it."""
        self._check_open()
        placed = self._placed[self.allocations.range(pointer, nbytes).number]
        if placed.failure is not None:
            raise StorageError(
                f"the allocation at {placed.address:#x} cannot be used any more: a write to it "
                f"failed ({placed.failure}), so nobody knows what it holds; free it, and allocate "
                "another",
                allocation_address=placed.address,
            )
        return placed, pointer.address - placed.address
