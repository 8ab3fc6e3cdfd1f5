"""Memories: pointers, allocation tables, allocators, and the interface that copies use."""

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
from sw_driver.device.link import Leg, ReservedLink

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
    """A place in an allocation; ``pointer + offset`` is ``offset`` bytes further.

    As in C, a pointer may leave its allocation; using it there is refused.
    """

    channel: int
    """Number of the channel, GPU or storage; the subclasses state which."""
    address: int
    """Byte address in the memory."""
    nbytes: int
    """Bytes from here to the end of the allocation."""
    allocation: int
    """Number of the allocation, never reused."""
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
    """A pointer into registered storage ``channel``; -1 if striped over several storages.

    ``address`` counts within the memory of the allocation, as if striped memory were contiguous.
    """


P = TypeVar("P", bound=Pointer)

_numbers = itertools.count(1)
"""Numbers of allocations, unique over all tables."""


class Users:
    """Operations, queued or in progress, that use a piece of memory."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._most = 8

    def add(self, operation: Operation) -> None:
        """Add an operation, which uses the memory until its end in the program's time."""
        if len(self._operations) >= self._most:
            self._operations = self._under_way()
            self._most = 2 * len(self._operations) + 8
        self._operations.append(operation)

    def check(self, memory: str, **details: object) -> None:
        """Raise :class:`BusyError`, with ``details``, if an operation uses the memory."""
        users = tuple(operation.label for operation in self._under_way())
        if users:
            raise BusyError(
                f"{memory} is in use by {', '.join(dict.fromkeys(users))}: wait for the end first",
                **details,
                users=users,
            )

    def _under_way(self) -> list[Operation]:
        """Return the operations that are not over in the program's time."""
        return [
            operation
            for operation in self._operations
            if not operation.over or operation.time > operation.domain.clock.present
        ]


@dataclass(kw_only=True)
class Allocation:
    """An allocated piece of memory."""

    number: int
    channel: int
    address: int
    nbytes: int
    """Requested size in bytes."""
    users: Users = field(default_factory=Users)


class AllocationTable(Generic[P]):
    """The allocations of one memory.

    Parameters
    ----------
    pointer_class: class of pointers into this memory; others are refused.
    device: number of the opened device, stored in the pointers.
    source: name of the function that makes the pointers, for messages.
    """

    def __init__(self, pointer_class: type[P], *, device: int, source: str) -> None:
        self._pointer_class = pointer_class
        self._device = device
        self._source = source
        self._allocations: dict[int, Allocation] = {}

    def __len__(self) -> int:
        return len(self._allocations)

    def add(self, *, channel: int, address: int, nbytes: int) -> P:
        """Add an allocation and return a pointer to it."""
        number = next(_numbers)
        self._allocations[number] = Allocation(
            number=number, channel=channel, address=address, nbytes=nbytes
        )
        return self._pointer_class(
            channel=channel, address=address, nbytes=nbytes, allocation=number, device=self._device
        )

    def check(self, pointer: Any) -> Allocation:
        """Return the allocation of ``pointer``, which may lie just outside of it.

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
        """Raise :class:`PointerError` unless it is a pointer of this class and device."""
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
        """Return the allocation of ``nbytes`` bytes at ``pointer``.

        Raises as :meth:`check`, and :class:`RangeError` for bytes outside of the allocation.
        """
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
        """Remove the allocation that starts at ``pointer`` and return it.

        Raises :class:`PointerError`, and :class:`BusyError` while an operation uses it.
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
    """Return ``value`` as an integer; raise :class:`InvalidArgumentError` below ``minimum``."""
    size = _integer(value)
    if size < minimum:
        raise InvalidArgumentError(
            f"{name} is {shown(value)}: expected an integer of at least {minimum}",
            name=name,
            value=value,
        )
    return size


def checked_channel(channel: Any, channels: int, suffix: str = "") -> int:
    """Return ``channel`` as an integer below ``channels``.

    Raises :class:`InvalidArgumentError`; ``suffix`` follows the expected values in its message.
    """
    number = _integer(channel)
    if not 0 <= number < channels:
        expected = "0" if channels == 1 else f"an integer from 0 to {channels - 1}"
        raise InvalidArgumentError(
            f"channel is {channel!r}: expected {expected}{suffix}",
            channel=channel,
            channels=channels,
        )
    return number


def _integer(value: Any) -> int:
    """Return ``value`` as an integer, or -1 if it is none."""
    try:
        return -1 if isinstance(value, bool) else index(value)
    except TypeError:
        return -1


@dataclass(frozen=True, kw_only=True)
class MemoryStatistics:
    """Allocated and free bytes of a memory, or of one channel of it."""

    total_bytes: int
    """Bytes that can be allocated in total."""
    free_bytes: int
    """Bytes not allocated."""
    largest_free_bytes: int
    """Size of the largest free range, in bytes."""
    allocations: int
    """Number of allocations with a share here."""
    peak_allocated_bytes: int
    """Most bytes ever allocated at once."""

    @property
    def allocated_bytes(self) -> int:
        """Allocated bytes, with each allocation rounded up to granules."""
        return self.total_bytes - self.free_bytes


class Allocator:
    """First-fit allocator of ranges in ``[0, limit_bytes)``.

    Sizes are rounded up to granules, so allocations never share a granule. Freed ranges merge with
    free neighbours at once. The same calls give the same addresses. A call takes time in proportion
    to the number of free ranges.

    Parameters
    ----------
    limit_bytes: size of the memory, a positive multiple of the granule.
    granule_bytes: unit of addresses and sizes, for example a disk's sector.
    setting: name of the argument that limits the memory, for messages; None if there is none.
    least: function from a size in bytes to the smallest value of that argument that gives it.

    Examples
    --------
    >>> memory = Allocator(limit_bytes=4096, granule_bytes=512)
    >>> first, second = memory.allocate(100), memory.allocate(1000)
    >>> memory.free(first)
    >>> memory.allocate(512), second, memory.statistics().largest_free_bytes
    (0, 512, 2560)
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
        # Disjoint (start, end) in ascending order; touching ranges are merged.
        self._free = [(0, limit_bytes)]
        self._sizes: dict[int, int] = {}
        self._allocated_bytes = 0
        self._peak_allocated_bytes = 0

    def statistics(self) -> MemoryStatistics:
        """Return the present statistics."""
        return MemoryStatistics(
            total_bytes=self._limit_bytes,
            free_bytes=self._limit_bytes - self._allocated_bytes,
            largest_free_bytes=max((end - start for start, end in self._free), default=0),
            allocations=len(self._sizes),
            peak_allocated_bytes=self._peak_allocated_bytes,
        )

    def allocate(self, nbytes: int) -> int:
        """Allocate ``nbytes``, at least 1, and return the address, a multiple of the granule.

        Raises :class:`OutOfMemoryError` if no free range is large enough.
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
        """Free the allocation at ``address``; raise ``KeyError`` if there is none."""
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
        """Take ``size`` bytes, whole granules; return None if no free range is large enough."""
        return self._take_at(size)

    def _take_at(self, size: int, *, period: int = 1, phase: int = 0) -> int | None:
        """Take ``size`` bytes at the lowest free address that is ``phase`` modulo ``period``."""
        for place, (start, end) in enumerate(self._free):
            address = start + (phase - start) % period
            if address + size <= end:
                rest = [(start, address), (address + size, end)]
                self._free[place : place + 1] = [part for part in rest if part[0] < part[1]]
                return address
        return None


class Memory(Protocol):
    """A memory that copies read and write. Calls must not overlap."""

    name: str
    """Name of the memory, as in reports and messages."""

    @property
    def links(self) -> Sequence[ReservedLink]:
        """Links that transfers occupy; each is a track in a timeline."""
        ...

    allocations: AllocationTable[Any]
    """Allocations in the memory."""

    def allocate(self, nbytes: int, channel: int | None) -> Pointer:
        """Allocate memory.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for a bad size or channel, and
        :class:`~sw_driver.device.errors.OutOfMemoryError`.
        """
        ...

    def free(self, pointer: Any) -> None:
        """Free an allocation; raise as :meth:`AllocationTable.remove`."""
        ...

    def read(self, pointer: Any, destination: NDArray[np.uint8]) -> None:
        """Fill ``destination`` with the bytes from ``pointer`` on."""
        ...

    def write(self, pointer: Any, source: NDArray[np.uint8]) -> None:
        """Copy ``source`` to ``pointer``."""
        ...

    def legs(self, pointer: Any, nbytes: int, *, writing: bool) -> list[Leg]:
        """Return the legs of moving ``nbytes`` to ``pointer`` if ``writing``, else from it."""
        ...

    def close(self) -> None:
        """Release the memory's system resources; a second call does nothing."""
        ...
