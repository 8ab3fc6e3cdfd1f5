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
from sw_driver.device.link import Leg, LinkTiming, ReservedLink
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
"""Size of a stripe unit in bytes; a unit is contiguous on one storage."""


def stripes(start: int, end: int, members: int) -> Iterator[tuple[int, int, int]]:
    """Yield the pieces of bytes ``start`` to ``end`` of an allocation striped over ``members``.

    A piece is the index of its storage, its offset in the allocation's share there, and its size.
    """
    while start < end:
        unit, within = divmod(start, STRIPE_BYTES)
        nbytes = min(STRIPE_BYTES - within, end - start) if members > 1 else end - start
        yield unit % members, share_bytes(start, unit % members, members), nbytes
        start += nbytes


def share_bytes(end: int, member: int, members: int) -> int:
    """Return how many of the first ``end`` bytes are on storage ``member`` of ``members``."""
    rounds, rest = divmod(end, STRIPE_BYTES * members)
    return rounds * STRIPE_BYTES + min(max(rest - member * STRIPE_BYTES, 0), STRIPE_BYTES)


BLOCK_BYTES = 4096
"""Size of a block in bytes; reads and writes are aligned to blocks.

It is a page, and at least the logical block of common drives, which ``O_DIRECT`` requires.
"""


@dataclass(frozen=True, kw_only=True)
class StorageStatistics(MemoryStatistics):
    """Allocation and transfer statistics of a registered storage."""

    path: str
    """Absolute path of the file or block device."""
    direct: bool
    """True if transfers bypass the page cache."""
    bytes_read: int
    """Bytes of successful reads, without padding to blocks."""
    bytes_written: int
    """Bytes of successful writes, without padding to blocks."""


class Storage:
    """A locked regular file or block device, accessed at any byte offset, and its timing.

    It is opened with ``O_DIRECT`` where the file system allows that, otherwise with ``O_DSYNC``.
    Either way the call that writes reports a failed write. The lock is ``flock``; for a block
    device also ``O_EXCL``, which refuses mounted ones. It holds until :meth:`close`, or until the
    process and its forks end.

    Calls must not overlap.

    Parameters
    ----------
    path: path of the file or block device.
    capacity_bytes: size to use, in whole blocks of :data:`BLOCK_BYTES`; None for all. A missing
        file is created, a shorter one is extended.
    timing, link: simulated time of transfers, and the link that they occupy.

    Raises
    ------
    StorageError: the file is missing, too small, not accessible or of another kind.
    DeviceInUseError: the file is locked, mounted or otherwise in use.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        capacity_bytes: int | None,
        timing: LinkTiming,
        link: ReservedLink,
    ) -> None:
        self.timing = timing
        self.link = link
        try:
            self._path = os.path.abspath(os.fsdecode(path))
            with ExitStack() as undo:
                self._file, self._direct = _opened(self._path, create=capacity_bytes is not None)
                undo.callback(self._file.close)
                descriptor = self._file.fileno()
                # fstat does not report the size of a block device. The file position is not used.
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
        """Return the present statistics."""
        return StorageStatistics(
            **vars(self.allocator.statistics()),
            path=self._path,
            direct=self._direct,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
        )

    def read(self, offset: int, destination: NDArray[np.uint8]) -> None:
        """Fill ``destination``, at least 1 byte, from ``offset`` on.

        Raises :class:`~sw_driver.device.errors.StorageError`,
        :class:`~sw_driver.device.errors.ClosedError`.
        """
        first, blocks = _blocks(offset, destination.size)
        self._move("read", os.preadv, first, blocks)
        self._bytes_read += destination.size
        destination[:] = blocks[offset - first : offset - first + destination.size]

    def write(self, offset: int, source: NDArray[np.uint8]) -> None:
        """Write ``source``, at least 1 byte, to ``offset``.

        Partly covered blocks are read first and written as a whole. Raises as :meth:`read`; the
        blocks are undefined then.
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
        """Unlock and close the file; a second call does nothing."""
        if not self._file.closed:
            # A forked process shares the lock and may live longer.
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
                raise OSError(
                    None, f"only {moved} were moved: the disk is full or the file was cut"
                )
        except OSError as error:
            raise StorageError(
                f"{verb} of {blocks.size} bytes at {offset:#x} of {self._path}: {error.strerror}",
                path=self._path,
                offset=offset,
                errno=error.errno,
            ) from error


def _blocks(offset: int, nbytes: int) -> tuple[int, NDArray[np.uint8]]:
    """Return the offset of a range's first block, and a buffer for all its blocks."""
    first = offset // BLOCK_BYTES * BLOCK_BYTES
    return first, zeroed_pages(-(-(offset + nbytes - first) // BLOCK_BYTES) * BLOCK_BYTES)


def _opened(path: str, *, create: bool) -> tuple[FileIO, bool]:
    """Return the open and locked file, and True if transfers bypass the page cache."""
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
        # Some file systems accept O_DIRECT and then refuse reads.
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
"""``channel`` of pointers to striped memory."""


@dataclass
class _Placed:
    """Placement of an allocation, and the error that made it unusable, if any."""

    address: int
    """Byte address of the allocation's start, as in its pointer."""
    shares: Sequence[tuple[Storage, int]]
    """Storages of the allocation, with the address of its share on each."""
    failure: str | None = None
    """Error of a failed write to the allocation, if any."""

    def pieces(
        self, start: int, data: NDArray[np.uint8]
    ) -> Iterator[tuple[Storage, int, NDArray[np.uint8]]]:
        """Yield storage, offset there and part of ``data``, which belongs at byte ``start``."""
        done = 0
        for member, offset, nbytes in stripes(start, start + data.size, len(self.shares)):
            storage, address = self.shares[member]
            yield storage, address + offset, data[done : done + nbytes]
            done += nbytes


class NvmeStorage:
    """The registered storages as one memory, see :class:`~sw_driver.device.memory.Memory`.

    An allocation is on one storage, or striped over all that are registered at that time in units
    of 128 KiB (:mod:`sw_driver.device.storage`). On each storage it occupies whole blocks of 4096
    bytes. Its contents are undefined until written, and are lost at :meth:`close`: no directory is
    stored.

    Calls must not overlap.

    A failed read leaves its destination as it was. After a failed write, the contents of the
    allocation are unknown: it can only be freed. Other allocations stay as they were.

    Parameters
    ----------
    device: number of the opened device, stored in the pointers.
    timing: default simulated time of each storage's transfers.
    """

    name = "nvme"

    def __init__(self, *, device: int, timing: LinkTiming) -> None:
        self._timing = timing
        self.allocations = AllocationTable(NvmePointer, device=device, source="MallocNvme")
        self._storages: list[Storage] = []
        self._placed: dict[int, _Placed] = {}
        # Striped allocations get addresses from a range of their own.
        self._next_striped_address = 0
        self._closed = False

    @property
    def links(self) -> Sequence[ReservedLink]:
        """One link for each storage, named ``nvme0`` and so on."""
        return [storage.link for storage in self._storages]

    def register(
        self,
        path: str | os.PathLike[str],
        *,
        capacity_bytes: int | None = None,
        timing: LinkTiming | None = None,
    ) -> int:
        """Register a regular file or block device as storage and return its number.

        Its contents are overwritten as the memory is used. It stays locked until :meth:`close`, or
        until the process and its forks end.

        Parameters
        ----------
        path: path of the file or block device.
        capacity_bytes: size to use, rounded down to blocks of 4096 bytes; None for all. A missing
            file is created and a shorter one extended; disk space is taken when it is written.
        timing: simulated time of its transfers; None for the memory's default.

        Raises
        ------
        StorageError
            The path is missing, or a directory, FIFO, socket or character device. Or it cannot be
            opened for reading and writing, or be extended, or has less than 4096 bytes.
        DeviceInUseError
            It is already registered, under whatever name, or is locked or mounted.
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
                link=ReservedLink(f"nvme{number}"),
            )
        )
        return number

    def statistics(self) -> list[StorageStatistics]:
        """Return the statistics of each storage, also after :meth:`close`."""
        return [storage.statistics() for storage in self._storages]

    def allocate(self, nbytes: int, channel: int | None = None) -> NvmePointer:
        """Allocate ``nbytes`` bytes.

        Parameters
        ----------
        nbytes: size in bytes, at least 1.
        channel: number of a storage; None to stripe over all of them with equal shares.

        Raises
        ------
        InvalidArgumentError
            ``nbytes`` is no size, ``channel`` is no number of a storage, or none is registered.
        OutOfMemoryError, ClosedError
            A storage has no room, or the memory was closed.
        """
        self._check_open()
        nbytes = checked_size("nbytes", nbytes, minimum=1)
        numbers = self._numbers(channel)
        # The first share is the largest; all storages get as much, so their addresses stay equal.
        share = share_bytes(nbytes, 0, len(numbers))
        shares: list[tuple[Storage, int]] = []
        for number in numbers:
            storage = self._storages[number]
            try:
                shares.append((storage, storage.allocator.allocate(share)))
            except OutOfMemoryError as error:
                for full_storage, address in shares:
                    full_storage.allocator.free(address)
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
        """Free an allocation.

        Raises as :meth:`~sw_driver.device.memory.AllocationTable.remove`, and
        :class:`~sw_driver.device.errors.ClosedError`.
        """
        self._check_open()
        for storage, address in self._placed.pop(self.allocations.remove(pointer).number).shares:
            storage.allocator.free(address)

    def read(self, pointer: Pointer, destination: NDArray[np.uint8]) -> None:
        """Fill ``destination`` from ``pointer`` on, or raise and leave it as it was.

        Raises
        ------
        StorageError
            A write to the allocation failed, or this read failed or was short.
        PointerError, RangeError, ClosedError
            The pointer, the range or the closed memory is refused.
        """
        placed, start = self._find(pointer, destination.size)
        data = np.empty_like(destination)
        for storage, offset, piece in placed.pieces(start, data):
            storage.read(offset, piece)
        destination[:] = data

    def write(self, pointer: Pointer, source: NDArray[np.uint8]) -> None:
        """Write ``source`` to ``pointer``; on return the storage has accepted all bytes.

        Raises as :meth:`read`. After a :class:`~sw_driver.device.errors.StorageError` the
        allocation can only be freed.
        """
        placed, start = self._find(pointer, source.size)
        try:
            for storage, offset, piece in placed.pieces(start, source):
                storage.write(offset, piece)
        except BaseException as error:  # after any of them the contents are unknown
            placed.failure = f"{type(error).__name__}: {error}"
            raise

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """Return a leg for each storage with some of the bytes, as long as its share takes."""
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
        """Close and unlock all storages."""
        self._closed = True
        for storage in self._storages:
            storage.close()

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
        """Return a usable allocation, and the start of the range in it."""
        self._check_open()
        placed = self._placed[self.allocations.range(pointer, nbytes).number]
        if placed.failure is not None:
            raise StorageError(
                f"the allocation at {placed.address:#x} cannot be used any more: a write to it "
                f"failed ({placed.failure}), so its contents are unknown; free it, and allocate "
                "another",
                allocation_address=placed.address,
            )
        return placed, pointer.address - placed.address
