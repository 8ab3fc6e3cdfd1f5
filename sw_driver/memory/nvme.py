"""NVMe storage: registered files and block devices as a memory (paper section 4.2, Table 2)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.errors import ClosedError, InvalidArgumentError, OutOfMemoryError, StorageError
from sw_driver.memory.allocations import AllocationTable, checked_channel, checked_size
from sw_driver.memory.interface import Leg
from sw_driver.memory.pointers import NvmePointer, Pointer
from sw_driver.memory.storage import BLOCK_BYTES, Storage, StorageStatistics
from sw_driver.memory.striping import share_bytes, stripes
from sw_driver.memory.timing import LinkTiming, NvmeTiming
from sw_driver.runtime.schedule import Schedule

__all__ = ["STRIPED", "NvmeStorage", "StorageStatistics"]

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
    """The registered storages as one memory, see :class:`~sw_driver.memory.interface.Memory`.

    An allocation is on one storage or striped over all that are registered at that time, in units
    of 128 KiB (:mod:`sw_driver.memory.striping`); on each storage it has whole blocks of 4096
    bytes for itself. Its contents are undefined until they are written, and unlike a file's do not
    survive: nothing says after :meth:`close` what was where.

    Any thread may call.

    A read that fails leaves its destination as it was. After a write that fails, nobody knows what
    the allocation holds: it cannot be used any more, only freed. All others are as they were.

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
        self._closed = False

    @property
    def schedules(self) -> Sequence[Schedule]:
        """One schedule for each storage, named ``nvme0`` and so on."""
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
        path: path of the file or block device.
        capacity_bytes: how much of it to use, rounded down to 4096. A file that does not exist is
            created and one that is shorter extended, without taking room on the disk before it is
            written. By default all there is.
        timing: of its transfers; by default that of the paper's drive.

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
        with self._lock:
            number = len(self._storages)
            self._storages.append(
                Storage(
                    path,
                    capacity_bytes=capacity_bytes,
                    timing=timing or NvmeTiming(),
                    schedule=Schedule(f"nvme{number}"),
                )
            )
            return number

    def statistics(self) -> list[StorageStatistics]:
        """Statistics of each storage. Also after :meth:`close`."""
        with self._lock:
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
            self._placed[pointer.allocation] = _Placed(address, shares)
            return pointer

    def free(self, pointer: Any) -> None:
        """Frees an allocation.

        Raises what :meth:`~sw_driver.memory.allocations.AllocationTable.remove`
        raises, and :class:`~sw_driver.errors.ClosedError`.
        """
        self._check_open()
        with self._lock:
            for storage, address in self._placed.pop(
                self.allocations.remove(pointer).number
            ).shares:
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

        Raises what :meth:`read` raises. After a :class:`~sw_driver.errors.StorageError` the
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
                legs.append(Leg(storage.schedule, duration))
        return legs

    def close(self) -> None:
        """Closes all storages, which unlocks them, after transfers in progress have ended."""
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
