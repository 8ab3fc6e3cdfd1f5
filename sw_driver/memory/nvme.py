"""NVMe storage: registered files and block devices as a memory (paper section 4.2, Table 2)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sw_driver.errors import (
    ClosedError,
    LostDataError,
    NoSuchChannelError,
    NoSuchStorageError,
    OutOfMemoryError,
    StorageInUseError,
)
from sw_driver.memory.allocations import AllocationTable, checked_channel, checked_size
from sw_driver.memory.directio import BLOCK_BYTES, DirectFile, identify
from sw_driver.memory.interface import FreeSpace, Leg
from sw_driver.memory.intervals import Intervals
from sw_driver.memory.nvmetiming import NvmeTiming
from sw_driver.memory.pointers import NvmePointer, Pointer
from sw_driver.memory.storage import Storage, StorageStatistics
from sw_driver.memory.striping import StripePart, Striping
from sw_driver.runtime.schedule import Schedule

__all__ = ["STRIPED", "NvmeStorage", "NvmeTiming", "StorageStatistics"]

STRIPED = -1
"""The ``channel`` of pointers to memory that is striped over several storages."""

WORKERS = 8
"""Threads at most that move the parts of striped transfers, beside those that ask for them."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Registered:
    """A storage and its time."""

    storage: Storage
    timing: NvmeTiming
    schedule: Schedule


@dataclass(frozen=True)
class _Placed:
    """Where an allocation is."""

    address: int
    """Of the pointer to its start."""
    striping: Striping
    shares: Sequence[tuple[_Registered, int]]
    """The storages, and the address of its share on each."""

    def parts(self, start: int, end: int) -> list[_Part]:
        """The parts of the bytes from ``start`` to ``end``."""
        parts = []
        for part in self.striping.parts(start, end):
            registered, address = self.shares[part.member]
            share_bytes = self.striping.bytes_before(self.striping.nbytes, part.member)
            parts.append(_Part(part, registered, address + part.offset, address + share_bytes))
        return parts


@dataclass(frozen=True)
class _Part:
    """What of a transfer is on one storage."""

    stripes: StripePart
    registered: _Registered
    offset: int
    """On the storage."""
    share_end: int
    """Where on the storage the allocation ends."""

    def read(self) -> NDArray[np.uint8]:
        return self.registered.storage.read(self.offset, self.stripes.nbytes)

    def fill(self, destination: NDArray[np.uint8], data: NDArray[np.uint8]) -> None:
        position = 0
        for each in self.stripes.slices:
            piece = destination[each]
            piece[:] = data[position : position + piece.size]
            position += piece.size

    def lost(self) -> list[tuple[int, int]]:
        """Ranges of lost bytes, by where they are in the transfer."""
        found: list[tuple[int, int]] = []
        position = self.offset
        for each in self.stripes.slices:
            end = position + each.stop - each.start
            found += [
                (low - position + each.start, high - position + each.start)
                for low, high in self.registered.storage.lost_within(position, end)
            ]
            position = end
        return found

    def write(self, source: NDArray[np.uint8]) -> None:
        pieces = [source[each] for each in self.stripes.slices]
        self.registered.storage.write(self.offset, pieces, self.share_end)


class NvmeStorage:
    """The registered storages as one memory, see :class:`~sw_driver.memory.interface.Memory`.

    An allocation is on one storage or striped over all that are registered at that time, in units
    of 128 KiB (:mod:`sw_driver.memory.striping`); on each storage it has whole blocks of 4096
    bytes for itself. Its contents are undefined until they are written, and unlike a file's do not
    survive: nothing says after :meth:`close` what was where.

    Any thread may call. Transfers of different allocations, and of ranges of one that do not
    overlap, may be under way at once.

    A read that fails leaves its destination as it was. After a write that failed, each byte of its
    range either is what was to be written or is *lost*. Next to the range, bytes that share a
    4096-byte block with it are lost too if the writing of that block was begun; all others are as
    they were. Lost bytes can be overwritten, but until then reading them raises
    :class:`~sw_driver.errors.LostDataError`; the rest of the allocation can be read. A file that
    becomes shorter loses what is cut off, also when it is enlarged again. Freeing an allocation
    forgets what it lost.

    Parameters
    ----------
    device: number of the opened device, which its pointers carry.
    """

    name = "nvme"

    def __init__(self, *, device: int) -> None:
        self.allocations = AllocationTable(NvmePointer, device=device, source="MallocNvme")
        self._registered: list[_Registered] = []
        self._placed: dict[int, _Placed] = {}
        # Striped allocations are on no storage alone, so these addresses are theirs only.
        self._next_striped_address = 0
        self._lock = threading.Lock()
        # It starts threads only as they are needed.
        self._executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="nvme")
        self._submitting = threading.Lock()
        self._closed = False
        self._process = os.getpid()

    @property
    def schedules(self) -> Sequence[Schedule]:
        """One for each storage, named ``nvme0`` and so on."""
        return [each.schedule for each in self._registered]

    def register(
        self,
        path: str | os.PathLike[str],
        *,
        capacity_bytes: int | None = None,
        timing: NvmeTiming | None = None,
    ) -> int:
        """Makes a regular file or block device a storage, and returns its number.

        What it contains is overwritten as memory on it is used. It is locked for this process until
        :meth:`close` or the end of the process, however it ends.

        Parameters
        ----------
        path: of the file or block device.
        capacity_bytes: how much of it to use, rounded down to 4096. A file that does not exist is
            created and one that is shorter extended, and its room on the file system is reserved
            (where the file system can do that). By default all there is.
        timing: by default that of the paper's drive.

        Raises
        ------
        NoSuchStorageError
            It is missing, a directory, FIFO, socket or character device, cannot be opened for
            reading and writing, has less than 4096 bytes, or there is no room for
            ``capacity_bytes``.
        StorageInUseError
            It is registered already, under whatever name, or is locked or mounted.
        InvalidSizeError
            ``capacity_bytes`` is not an integer of at least 4096.
        ClosedError
            After :meth:`close`.
        """
        if capacity_bytes is not None:
            capacity_bytes = checked_size("capacity_bytes", capacity_bytes, minimum=BLOCK_BYTES)
            capacity_bytes -= capacity_bytes % BLOCK_BYTES
        try:
            text = os.fsdecode(path)
        except TypeError as error:
            raise NoSuchStorageError(
                f"{path!r} is a {type(path).__name__}: expected the path of a file or block device"
            ) from error
        if not text:
            raise NoSuchStorageError("the path is empty: expected that of a file or block device")
        absolute = os.path.abspath(text)
        self._check_open()
        with self._lock:
            self._check_open()
            if os.path.exists(absolute):
                identity = identify(absolute)
                for number, each in enumerate(self._registered):
                    if each.storage.file.identity == identity:
                        raise StorageInUseError(
                            f"{absolute!r} is registered already, as storage {number} "
                            f"({each.storage.file.path!r})",
                            path=absolute,
                            storage=number,
                        )
            file = DirectFile(absolute, capacity_bytes=capacity_bytes)
            number = len(self._registered)
            self._registered.append(
                _Registered(Storage(file), timing or NvmeTiming(), Schedule(f"nvme{number}"))
            )
            return number

    def statistics(self) -> list[StorageStatistics]:
        """Of each storage. Also after :meth:`close`."""
        return [each.storage.statistics() for each in self._registered]

    def free_space(self) -> list[FreeSpace]:
        """Of each storage."""
        return [
            FreeSpace(
                channel=number,
                total_bytes=each.capacity_bytes,
                free_bytes=each.free_bytes,
                largest_free_bytes=each.largest_free_bytes,
                allocations=each.allocations,
            )
            for number, each in enumerate(self.statistics())
        ]

    def allocate(self, nbytes: int, channel: int | None = None) -> NvmePointer:
        """Allocates ``nbytes`` bytes.

        Parameters
        ----------
        nbytes: at least 1.
        channel: number of a storage; None for all that are registered, with an equal share on each.

        Raises
        ------
        InvalidSizeError, OutOfMemoryError, ClosedError
            As their names say.
        NoSuchChannelError
            ``channel`` is no number of a storage, or none is registered.
        """
        nbytes = checked_size("nbytes", nbytes, minimum=1)
        self._check_open()
        with self._lock:
            self._check_open()
            numbers = self._numbers(channel)
            storages = [self._registered[number] for number in numbers]
            striping = Striping(len(storages), nbytes)
            # The share of the first is the largest; the others get as much, so all stay alike.
            share_bytes = striping.bytes_before(nbytes, 0)
            addresses: list[int] = []
            try:
                for each in storages:
                    addresses.append(each.storage.allocate(share_bytes))
            except OutOfMemoryError as error:
                for each, address in zip(storages, addresses, strict=False):
                    each.storage.free(address)
                raise self._out_of_memory(nbytes, share_bytes, numbers) from error
            if len(storages) == 1:
                number, address = numbers[0], addresses[0]
            else:
                number, address = STRIPED, self._next_striped_address
                self._next_striped_address += -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
            pointer = self.allocations.add(channel=number, address=address, nbytes=nbytes)
            shares = list(zip(storages, addresses, strict=True))
            self._placed[pointer.allocation] = _Placed(address, striping, shares)
            return pointer

    def free(self, pointer: Any) -> None:
        """Frees an allocation.

        Raises what :meth:`~sw_driver.memory.allocations.AllocationTable.remove`
        raises, and :class:`~sw_driver.errors.ClosedError`.
        """
        self._check_open()
        with self._lock:
            self._check_open()
            placed = self._placed.pop(self.allocations.remove(pointer).number)
            for each, address in placed.shares:
                each.storage.free(address)

    def read(self, pointer: Pointer, destination: NDArray[np.uint8]) -> None:
        """Fills ``destination`` from ``pointer`` on, or leaves it as it is and raises.

        Raises
        ------
        LostDataError
            Some of the bytes are lost, see above. ``details["allocation_offset"]`` is where the
            first of them is in the allocation; ``offset`` is where it is in the file ``path``, and
            ``nbytes`` how many there are there in one piece. ``details["lost"]`` has all that the
            allocation lost: a list of offsets from its start and sizes.
        StorageChangedError
            A storage has become smaller than it was when it was registered.
        StorageIOError
            The system refused, or moved nothing though asked again and again.
        ForeignPointerError, FreedPointerError, CopyRangeError, ClosedError
            As their names say.
        """
        parts = self._parts(pointer, destination.size)
        try:
            found = self._at_once([part.read for part in parts])
        except LostDataError as error:
            raise self._placed_in_allocation(error, pointer, destination.size) from error
        for part, data in zip(parts, found, strict=True):
            part.fill(destination, data)

    def write(self, pointer: Pointer, source: NDArray[np.uint8]) -> None:
        """Writes ``source`` from ``pointer`` on.

        When it returns the storage has accepted all. When it raises, the bytes not written are
        lost; the parts on other storages than the one that failed are written.

        Raises
        ------
        StorageChangedError
            A storage has become smaller than it was when it was registered.
        StorageIOError
            The system refused, or moved nothing though asked again and again.
        ForeignPointerError, FreedPointerError, CopyRangeError, ClosedError
            As their names say. Nothing is lost then.
        """
        parts = self._parts(pointer, source.size)
        self._at_once([lambda part=part: part.write(source) for part in parts])

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """Each storage that has some of the bytes, for as long as its share takes."""
        return [
            Leg(
                part.registered.schedule,
                part.registered.timing.duration_ns(part.stripes.nbytes, writing=writing),
            )
            for part in self._parts(pointer, nbytes)
        ]

    def close(self) -> None:
        """Closes all storages, which unlocks them, after transfers in progress have ended."""
        if os.getpid() != self._process:
            return  # the files have been closed here, and the threads are not here
        with self._lock, self._submitting:
            self._closed = True
        self._executor.shutdown()
        for each in self._registered:
            each.storage.close()

    def _check_open(self) -> None:
        # The process first: the lock may have been held when it forked.
        if os.getpid() != self._process:
            raise ClosedError(
                f"the storage belongs to process {self._process}, this one was forked from it",
                process=self._process,
            )
        if self._closed:
            raise ClosedError("the storage was closed")

    def _numbers(self, channel: int | None) -> Sequence[int]:
        count = len(self._registered)
        if not count:
            raise NoSuchChannelError(
                "no storage is registered: call RegisterStorage with the path of a file or block "
                "device first",
                channel=channel,
                storages=0,
            )
        if channel is None:
            return range(count)
        return [checked_channel(channel, count, ", the number of a storage, or None for all")]

    def _out_of_memory(
        self, nbytes: int, share_bytes: int, numbers: Sequence[int]
    ) -> OutOfMemoryError:
        statistics = {number: self._registered[number].storage.statistics() for number in numbers}
        free = "; ".join(
            f"storage {number} has {each.free_bytes} of {each.capacity_bytes} bytes free, "
            f"{each.largest_free_bytes} of them in one piece"
            for number, each in statistics.items()
        )
        striped = f", {share_bytes} on each storage" if len(numbers) > 1 else ""
        return OutOfMemoryError(
            f"no room for {nbytes} bytes{striped}: {free}",
            nbytes=nbytes,
            share_bytes=share_bytes,
            free_bytes={number: each.free_bytes for number, each in statistics.items()},
            largest_free_bytes={
                number: each.largest_free_bytes for number, each in statistics.items()
            },
        )

    def _parts(self, pointer: Pointer, nbytes: int) -> list[_Part]:
        self._check_open()
        allocation = self.allocations.range(pointer, nbytes)
        placed = self._placed[allocation.number]
        start = pointer.address - placed.address
        return placed.parts(start, start + nbytes)

    def _placed_in_allocation(
        self, error: LostDataError, pointer: Pointer, nbytes: int
    ) -> LostDataError:
        """``error``, and which bytes of the allocation are lost."""
        allocation = self.allocations.range(pointer, nbytes)
        placed = self._placed[allocation.number]
        lost = Intervals()
        for part in placed.parts(0, allocation.nbytes):
            for low, high in part.lost():
                lost.add(low, high)
        start = pointer.address - placed.address
        wanted = lost.within(start, start + nbytes)
        if not wanted:
            return error  # they have been written meanwhile
        low, high = wanted[0]
        [first] = placed.parts(low, low + 1)
        path = first.registered.storage.file.path
        unit_bytes = placed.striping.unit_bytes
        return LostDataError(
            f"bytes {low:#x} to {high:#x} of the allocation (from {first.offset:#x} of {path} on) "
            "are undefined, as a write there failed or the file was cut off: write them again "
            f"first; of the whole allocation, {lost.total} bytes are lost",
            path=path,
            offset=first.offset,
            nbytes=min(high, (low // unit_bytes + 1) * unit_bytes) - low,
            allocation_offset=low,
            lost=[(low, high - low) for low, high in lost.within(0, allocation.nbytes)],
        )

    def _at_once(self, transfers: Sequence[Callable[[], T]]) -> list[T]:
        """What they return, once all are over; raises what the first that failed raised.

        None of them can hang for longer than the system lets a transfer hang.
        """
        if len(transfers) < 2:
            return [transfer() for transfer in transfers]
        with self._submitting:
            self._check_open()
            futures = [self._executor.submit(transfer) for transfer in transfers[1:]]
        try:
            first = transfers[0]()
        finally:
            wait(futures)
        return [first, *(future.result() for future in futures)]
