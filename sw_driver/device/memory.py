"""Memories: pointers, what is allocated, and what copies need of a memory."""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hw.logic.line import LINE_BYTES
from sw_driver.device.clock import Operation
from sw_driver.device.errors import (
    BusyError,
    InvalidArgumentError,
    OutOfMemoryError,
    PointerError,
    RangeError,
    shown,
)
from sw_driver.device.link import Leg, Link

__all__ = [
    "Allocation",
    "AllocationTable",
    "Allocator",
    "AxdimmPointer",
    "GpuPointer",
    "HostPointer",
    "Memory",
    "MemoryStatistics",
    "NvmePointer",
    "Pointer",
    "Users",
    "checked_channel",
    "checked_size",
]


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """A place in an allocation; ``pointer + offset`` is the place ``offset`` bytes on.

    As in C, a pointer may be moved out of its allocation; using it there is refused.
    """

    channel: int
    """Number of the channel, GPU or storage that the pointer is into: see the kinds of pointers."""
    address: int
    """Byte address in the memory it points into."""
    nbytes: int
    """Bytes from here to the end of the allocation."""
    allocation: int
    """Number of the allocation, never used twice."""
    device: int
    """Number of the opened device that made the pointer."""

    def __add__(self, offset: int) -> Self:
        step = index(offset)
        return replace(self, address=self.address + step, nbytes=self.nbytes - step)

    __radd__ = __add__

    def __sub__(self, offset: int) -> Self:
        return self + -index(offset)


class AxdimmPointer(Pointer):
    """A pointer into the DRAM of the module's channel ``channel``."""


class HostPointer(Pointer):
    """A pointer into memory of the host; ``channel`` is 0."""


class GpuPointer(Pointer):
    """A pointer into the memory of GPU ``channel``."""


class NvmePointer(Pointer):
    """A pointer into registered storage: device ``channel``, or -1 for striped over several.

    ``address`` counts within the allocation's memory: for a striped one, as if it were one piece.
    """


P = TypeVar("P", bound=Pointer)

_numbers = itertools.count(1)
"""Numbers of allocations over all tables: no pointer into one memory is one into another."""


class Users:
    """The operations, queued or in progress, that need a piece of memory."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._most = 8

    def add(self, operation: Operation) -> None:
        """From now until its end, in the program's time, the operation needs the memory."""
        if len(self._operations) >= self._most:
            self._operations = self._under_way()
            self._most = 2 * len(self._operations) + 8
        self._operations.append(operation)

    def check(self, memory: str, **details: object) -> None:
        """Raises :class:`BusyError` if an operation needs the memory, with the ``details``."""
        users = tuple(each.what for each in self._under_way())
        if users:
            raise BusyError(
                f"{memory} is in use by {', '.join(dict.fromkeys(users))}: wait for the end first",
                **details,
                users=users,
            )

    def _under_way(self) -> list[Operation]:
        """Those that are not over, or ahead of the program's time."""
        return [
            each
            for each in self._operations
            if not each.over or each.time > each.domain.clock.present
        ]


@dataclass(kw_only=True)
class Allocation:
    """A piece of memory that is in use."""

    number: int
    channel: int
    address: int
    nbytes: int
    """Bytes that were asked for."""
    users: Users = field(default_factory=Users)


class AllocationTable(Generic[P]):
    """The allocations of one memory.

    Parameters
    ----------
    pointer_class: class of the pointers into this memory; others are refused.
    device: number of the opened device, which its pointers carry.
    source: the function that makes such pointers, for messages.
    """

    def __init__(self, pointer_class: type[P], *, device: int, source: str) -> None:
        self._pointer_class = pointer_class
        self._device = device
        self._source = source
        self._allocations: dict[int, Allocation] = {}

    def __len__(self) -> int:
        return len(self._allocations)

    def add(self, *, channel: int, address: int, nbytes: int) -> P:
        """Notes an allocation and returns the pointer to it."""
        number = next(_numbers)
        self._allocations[number] = Allocation(
            number=number, channel=channel, address=address, nbytes=nbytes
        )
        return self._pointer_class(
            channel=channel, address=address, nbytes=nbytes, allocation=number, device=self._device
        )

    def check(self, pointer: Any) -> Allocation:
        """The allocation that ``pointer`` points into, or just out of.

        Raises :class:`PointerError`.
        """
        self.check_kind(pointer)
        allocation = self._allocations.get(pointer.allocation)
        if allocation is None:
            raise PointerError(
                f"allocation {pointer.allocation} at address {pointer.address:#x} of channel "
                f"{pointer.channel} was freed",
                allocation=pointer.allocation,
                address=pointer.address,
                channel=pointer.channel,
            )
        if allocation.channel != pointer.channel:
            raise PointerError(
                f"allocation {pointer.allocation} is on channel {allocation.channel}, the pointer "
                f"says {pointer.channel}: it was not made by {self._source}",
                allocation=pointer.allocation,
                channel=pointer.channel,
                allocation_channel=allocation.channel,
            )
        return allocation

    def check_kind(self, pointer: Any) -> None:
        """Raises :class:`PointerError` for what is no pointer of this kind and device."""
        if type(pointer) is not self._pointer_class:
            raise PointerError(
                f"{pointer!r} is a {type(pointer).__name__}: expected what {self._source} returned"
            )
        if pointer.device != self._device:
            raise PointerError(
                f"address {pointer.address:#x} belongs to device {pointer.device}, this is device "
                f"{self._device}",
                address=pointer.address,
                pointer_device=pointer.device,
                device=self._device,
            )

    def range(self, pointer: Any, nbytes: int) -> Allocation:
        """The allocation as of :meth:`check`; raises :class:`RangeError` if ``nbytes`` from the
        pointer on are not all in it."""
        allocation = self.check(pointer)
        offset = pointer.address - allocation.address
        if offset < 0 or offset + nbytes > allocation.nbytes:
            raise RangeError(
                f"bytes {offset} to {offset + nbytes} of an allocation of "
                f"{allocation.nbytes} bytes at {allocation.address:#x}",
                offset=offset,
                nbytes=nbytes,
                allocation_bytes=allocation.nbytes,
            )
        return allocation

    def remove(self, pointer: Any) -> Allocation:
        """Forgets the allocation that starts at ``pointer`` and returns it.

        Raises :class:`PointerError`, and :class:`BusyError` while an operation needs it.
        """
        allocation = self.check(pointer)
        if pointer.address != allocation.address:
            raise PointerError(
                f"address {pointer.address:#x} is {pointer.address - allocation.address} bytes "
                f"into its allocation: free {allocation.address:#x}",
                address=pointer.address,
                allocation_address=allocation.address,
            )
        allocation.users.check(
            f"address {pointer.address:#x} on channel {allocation.channel}",
            channel=allocation.channel,
            address=pointer.address,
        )
        del self._allocations[allocation.number]
        return allocation


def checked_size(name: str, value: Any, minimum: int = 0) -> int:
    """``value`` as an integer of at least ``minimum``. Raises :class:`InvalidArgumentError`."""
    size = _integer(value)
    if size < minimum:
        raise InvalidArgumentError(
            f"{name} is {shown(value)}: expected an integer of at least {minimum}",
            name=name,
            value=value,
        )
    return size


def checked_channel(channel: Any, channels: int, of: str = "") -> int:
    """``channel`` as an integer below ``channels``. Raises :class:`InvalidArgumentError`.

    ``of`` says in the message whose channels they are.
    """
    number = _integer(channel)
    if not 0 <= number < channels:
        expected = "0" if channels == 1 else f"an integer from 0 to {channels - 1}"
        raise InvalidArgumentError(
            f"channel is {channel!r}: expected {expected}{of}", channel=channel, channels=channels
        )
    return number


def _integer(value: Any) -> int:
    """``value`` as an integer, -1 for what is none."""
    try:
        return -1 if isinstance(value, bool) else index(value)
    except TypeError:
        return -1


@dataclass(frozen=True, kw_only=True)
class MemoryStatistics:
    """How much of a memory, or of one channel of it, is allocated and free."""

    total_bytes: int
    """Bytes that can be allocated when nothing is."""
    free_bytes: int
    """Bytes not allocated."""
    largest_free_bytes: int
    """Bytes of the largest allocation that may succeed."""
    allocations: int
    """Allocations that have a share here and have not been freed."""
    peak_allocated_bytes: int
    """The most bytes that were ever allocated at once."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes allocated, each allocation rounded up to granules."""
        return self.total_bytes - self.free_bytes


class Allocator:
    """Hands out ranges of ``[0, limit_bytes)``, the first that fits, counted from address 0.

    Sizes are rounded up to granules, so that no two allocations share one. Freed ranges are united
    with free neighbours at once. The same calls give the same addresses. A call takes time in
    proportion to the number of free ranges.

    Parameters
    ----------
    limit_bytes: size of the memory, a positive multiple of the granule.
    granule_bytes: what addresses and sizes are multiples of, for example the sector of a disk.
    setting: name of the argument that bounds the memory, for messages; none without one.
    least: the least value of that argument with which the memory has as many bytes.
    """

    def __init__(
        self,
        *,
        limit_bytes: int,
        granule_bytes: int = LINE_BYTES,
        setting: str | None = None,
        least: Callable[[int], int] = lambda limit_bytes: limit_bytes,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._granule_bytes = granule_bytes
        self._setting, self._least = setting, least
        # (start, end) in ascending order; no two touch.
        self._free = [(0, limit_bytes)]
        self._sizes: dict[int, int] = {}
        self._allocated_bytes = 0
        self._peak_allocated_bytes = 0

    def statistics(self) -> MemoryStatistics:
        """Takes the statistics."""
        return MemoryStatistics(
            total_bytes=self._limit_bytes,
            free_bytes=self._limit_bytes - self._allocated_bytes,
            largest_free_bytes=max((end - start for start, end in self._free), default=0),
            allocations=len(self._sizes),
            peak_allocated_bytes=self._peak_allocated_bytes,
        )

    def allocate(self, nbytes: int) -> int:
        """Allocates ``nbytes``, at least 1, and returns the address, a multiple of the granule.

        Raises :class:`OutOfMemoryError` when no free range is large enough.
        """
        size = -(-nbytes // self._granule_bytes) * self._granule_bytes
        address = self._take(size)
        if address is None:
            state = self.statistics()
            start, end = self._free[-1] if self._free else (self._limit_bytes, 0)
            last_free_bytes = self._limit_bytes - start if end == self._limit_bytes else 0
            advice = ""
            if self._setting is not None:
                least = self._least(self._limit_bytes - last_free_bytes + size)
                advice = f"; {self._setting} of at least {least} would do"
            raise OutOfMemoryError(
                f"no room for {nbytes} bytes: {state.free_bytes} of {state.total_bytes} bytes are "
                f"free, {state.largest_free_bytes} of them in one piece{advice}",
                nbytes=nbytes,
                free_bytes=state.free_bytes,
                largest_free_bytes=state.largest_free_bytes,
            )
        self._sizes[address] = size
        self._allocated_bytes += size
        self._peak_allocated_bytes = max(self._peak_allocated_bytes, self._allocated_bytes)
        return address

    def free(self, address: int) -> None:
        """Frees the allocation at ``address``; ``KeyError`` if there is none."""
        size = self._sizes.pop(address)
        self._allocated_bytes -= size
        start, end = address, address + size
        index = bisect(self._free, (start, end))
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == start:
            index -= 1
            start = self._free.pop(index)[0]
        self._free.insert(index, (start, end))

    def _take(self, size: int) -> int | None:
        """Takes ``size`` bytes, whole granules; None if no free range is large enough."""
        return self._take_at(size)

    def _take_at(self, size: int, *, period: int = 1, phase: int = 0) -> int | None:
        """Takes ``size`` bytes at the lowest free address that is ``phase`` modulo ``period``."""
        for place, (start, end) in enumerate(self._free):
            address = start + (phase - start) % period
            if address + size <= end:
                rest = [(start, address), (address + size, end)]
                self._free[place : place + 1] = [each for each in rest if each[0] < each[1]]
                return address
        return None


class Memory(Protocol):
    """A memory that copies go to and come from. Calls must not overlap."""

    name: str
    """Name of the memory, as in reports and messages."""

    @property
    def links(self) -> Sequence[Link]:
        """The links that transfers occupy: the memory's tracks in a timeline."""
        ...

    allocations: AllocationTable[Any]
    """The table of what is allocated in the memory."""

    def allocate(self, nbytes: int, channel: int | None) -> Pointer:
        """Allocates memory.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for a size or channel,
        :class:`~sw_driver.device.errors.OutOfMemoryError`.
        """
        ...

    def free(self, pointer: Any) -> None:
        """Frees an allocation; raises what :meth:`AllocationTable.remove` raises."""
        ...

    def read(self, pointer: Any, destination: NDArray[np.uint8]) -> None:
        """Copies the bytes from ``pointer`` on to ``destination``, as many as it holds."""
        ...

    def write(self, pointer: Any, source: NDArray[np.uint8]) -> None:
        """Copies ``source`` to the bytes from ``pointer`` on."""
        ...

    def legs(self, pointer: Any, nbytes: int, *, writing: bool) -> list[Leg]:
        """The legs that moving ``nbytes`` from or, ``writing``, to ``pointer`` occupies."""
        ...

    def close(self) -> None:
        """Releases what the memory holds of the system. Calling it twice does no harm."""
        ...
