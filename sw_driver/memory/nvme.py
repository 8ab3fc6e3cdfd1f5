"""NVMe storage: registered files and block devices as a memory (paper section 4.2, Table 2)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
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
from sw_driver.memory.directio import BLOCK_BYTES, DirectFile
from sw_driver.memory.interface import FreeSpace, Leg
from sw_driver.memory.intervals import Intervals
from sw_driver.memory.pointers import NvmePointer, Pointer
from sw_driver.memory.storage import Storage, StorageStatistics
from sw_driver.memory.striping import Part, Striping, share_bytes
from sw_driver.memory.timing import LinkTiming, NvmeTiming
from sw_driver.runtime.schedule import Schedule

__all__ = ["STRIPED", "NvmeStorage", "StorageStatistics"]

STRIPED = -1
"""The ``channel`` of pointers to memory that is striped over several storages."""

WORKERS = 8
"""Threads at most that move the parts of striped transfers, beside those that ask for them."""

T = TypeVar("T")


@dataclass
class _Placed:
    """Where an allocation is, and what of it is lost."""

    address: int
    """Of the pointer to its start."""
    nbytes: int
    striping: Striping
    lost: Intervals = field(default_factory=Intervals)
    writing: threading.Lock = field(default_factory=threading.Lock)
    """Writes take turns, so that none clears what another has just lost of the same block."""


class NvmeStorage:
    """The registered storages as one memory, see :class:`~sw_driver.memory.interface.Memory`.

    An allocation is on one storage or striped over all that are registered at that time, in units
    of 128 KiB (:mod:`sw_driver.memory.striping`); on each storage it has whole blocks of 4096
    bytes for itself. Its contents are undefined until they are written, and unlike a file's do not
    survive: nothing says after :meth:`close` what was where.

    Any thread may call.

    A read that fails leaves its destination as it was. Of a write that fails on a storage, what was
    to be written there is *lost*, and so are the bytes beside it that share a 4096-byte block with
    it; all others are as they were. Reading lost bytes raises
    :class:`~sw_driver.errors.LostDataError` until they are written again.

    Parameters
    ----------
    device: number of the opened device, which its pointers carry.
    """

    name = "nvme"

    def __init__(self, *, device: int) -> None:
        self.allocations = AllocationTable(NvmePointer, device=device, source="MallocNvme")
        self._storages: list[Storage] = []
        self._placed: dict[int, _Placed] = {}
        # Striped allocations are on no storage alone, so these addresses are theirs only.
        self._next_striped_address = 0
        # Never held while bytes are moved.
        self._lock = threading.Lock()
        # It starts threads only as they are needed.
        self._executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="nvme")
        self._closed = False
        self._process = os.getpid()

    @property
    def schedules(self) -> Sequence[Schedule]:
        """One for each storage, named ``nvme0`` and so on."""
        return [each.schedule for each in self._storages]

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
        self._check_open()
        if capacity_bytes is not None:
            capacity_bytes = checked_size("capacity_bytes", capacity_bytes, minimum=BLOCK_BYTES)
            capacity_bytes -= capacity_bytes % BLOCK_BYTES
        try:
            absolute = os.path.abspath(os.fsdecode(path))
        except TypeError as error:
            raise NoSuchStorageError(
                f"{path!r} is a {type(path).__name__}: expected the path of a file or block device"
            ) from error
        with self._lock:
            for number, each in enumerate(self._storages):
                if os.path.exists(absolute) and os.path.samestat(
                    os.stat(absolute), each.file.status
                ):
                    raise StorageInUseError(
                        f"{absolute!r} is registered already, as storage {number} "
                        f"({each.file.path!r})",
                        path=absolute,
                        storage=number,
                    )
            file = DirectFile(absolute, capacity_bytes=capacity_bytes)
            number = len(self._storages)
            schedule = Schedule(f"nvme{number}")
            self._storages.append(Storage(file, timing or NvmeTiming(), schedule))
            return number

    def statistics(self) -> list[StorageStatistics]:
        """Of each storage. Also after :meth:`close`."""
        with self._lock:
            return [each.statistics() for each in self._storages]

    def free_space(self) -> Mapping[int, FreeSpace]:
        """Of each storage."""
        return dict(enumerate(self.statistics()))

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
        self._check_open()
        nbytes = checked_size("nbytes", nbytes, minimum=1)
        with self._lock:
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
            self._placed[pointer.allocation] = _Placed(address, nbytes, Striping(shares))
            return pointer

    def free(self, pointer: Any) -> None:
        """Frees an allocation.

        Raises what :meth:`~sw_driver.memory.allocations.AllocationTable.remove`
        raises, and :class:`~sw_driver.errors.ClosedError`.
        """
        self._check_open()
        with self._lock:
            placed = self._placed.pop(self.allocations.remove(pointer).number)
            for each, address in placed.striping.shares:
                each.allocator.free(address)

    def read(self, pointer: Pointer, destination: NDArray[np.uint8]) -> None:
        """Fills ``destination`` from ``pointer`` on, or leaves it as it is and raises.

        Raises
        ------
        LostDataError
            Some of the bytes are lost, see above. ``details["allocation_offset"]`` is where the
            first of them is in the allocation, and ``details["lost"]`` has all that the allocation
            lost: a list of offsets from its start and sizes.
        StorageChangedError
            A storage has become smaller than it was when it was registered.
        StorageIOError
            The system refused, or did not move all.
        ForeignPointerError, FreedPointerError, CopyRangeError, ClosedError
            As their names say.
        """
        placed, start, parts = self._find(pointer, destination.size)
        with self._lock:
            unreadable = placed.lost.within(start, start + destination.size)
            lost = placed.lost.within(0, placed.nbytes)
        if unreadable:
            low, high = unreadable[0]
            raise LostDataError(
                f"bytes {low:#x} to {high:#x} of the allocation are undefined, as a write there "
                "failed: write them again first; of the whole allocation, "
                f"{sum(high - low for low, high in lost)} bytes are lost",
                allocation_offset=low,
                lost=[(low, high - low) for low, high in lost],
            )
        found = self._at_once([part.read for part in parts])
        for part, data in zip(parts, found, strict=True):
            part.fill(destination, data)

    def write(self, pointer: Pointer, source: NDArray[np.uint8]) -> None:
        """Writes ``source`` from ``pointer`` on.

        When it returns the storage has accepted all. When it raises, the parts on other storages
        than the one that failed are written.

        Raises
        ------
        StorageChangedError
            A storage has become smaller than it was when it was registered.
        StorageIOError
            The system refused, or did not move all.
        ForeignPointerError, FreedPointerError, CopyRangeError, ClosedError
            As their names say. Nothing is lost then.
        """
        placed, start, parts = self._find(pointer, source.size)

        def write(part: Part) -> None:
            ranges = [(start + each.start, start + each.stop) for each in part.slices]
            try:
                part.write(source)
            except BaseException:  # whatever it is, what is there is not known
                with self._lock:
                    for low, high in ranges:
                        whole = -(-high // BLOCK_BYTES) * BLOCK_BYTES
                        placed.lost.add(low - low % BLOCK_BYTES, min(whole, placed.nbytes))
                raise
            with self._lock:
                for low, high in ranges:
                    placed.lost.remove(low, high)

        with placed.writing:
            self._at_once([lambda part=part: write(part) for part in parts])

    def legs(self, pointer: Pointer, nbytes: int, *, writing: bool) -> list[Leg]:
        """Each storage that has some of the bytes, for as long as its share takes."""
        _, _, parts = self._find(pointer, nbytes)
        return [
            Leg(
                part.storage.schedule,
                part.storage.timing.duration_ns(part.nbytes, writing=writing),
            )
            for part in parts
        ]

    def close(self) -> None:
        """Closes all storages, which unlocks them, after transfers in progress have ended."""
        if os.getpid() != self._process:
            return  # the threads are not here, and the files are the other process's
        with self._lock:
            self._closed = True
        self._executor.shutdown()
        with ExitStack() as closing:
            for each in self._storages:
                closing.callback(each.close)

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise ClosedError(
                f"the storage belongs to process {self._process}, this one was forked from it",
                process=self._process,
            )
        if self._closed:
            raise ClosedError("the storage was closed")

    def _numbers(self, channel: int | None) -> Sequence[int]:
        count = len(self._storages)
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

    def _find(self, pointer: Pointer, nbytes: int) -> tuple[_Placed, int, list[Part]]:
        """The allocation, where the range starts in it, and the range's parts."""
        self._check_open()
        placed = self._placed[self.allocations.range(pointer, nbytes).number]
        start = pointer.address - placed.address
        return placed, start, list(placed.striping.parts(start, start + nbytes))

    def _at_once(self, transfers: Sequence[Callable[[], T]]) -> list[T]:
        """What they return, once all are over; raises what the first that failed raised."""
        if len(transfers) < 2:
            return [transfer() for transfer in transfers]
        with self._lock:
            self._check_open()
            futures = [self._executor.submit(transfer) for transfer in transfers[1:]]
        try:
            first = transfers[0]()
        finally:
            wait(futures)
        return [first, *(future.result() for future in futures)]
