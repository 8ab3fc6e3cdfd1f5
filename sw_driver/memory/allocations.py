"""What is allocated in a memory, and the checks of every pointer into it."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from operator import index
from typing import Any, Generic, TypeVar

from ..errors import BusyError, InvalidArgumentError, PointerError, RangeError
from .pointers import Pointer

__all__ = ["Allocation", "AllocationTable", "checked_channel", "checked_size"]

P = TypeVar("P", bound=Pointer)

_numbers = itertools.count(1)
"""Numbers of allocations over all tables: no pointer into one memory is one into another."""


@dataclass(kw_only=True)
class Allocation:
    """A piece of memory that is in use."""

    number: int
    channel: int
    address: int
    nbytes: int
    """Bytes that were asked for."""
    users: list[str] = field(default_factory=list)
    """Operations, queued or in progress, that need the allocation, in words."""


class AllocationTable(Generic[P]):
    """The allocations of one memory. Any thread may call.

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
        self._lock = threading.RLock()
        self._allocations: dict[int, Allocation] = {}

    def __len__(self) -> int:
        return len(self._allocations)

    def add(self, *, channel: int, address: int, nbytes: int) -> P:
        """Notes an allocation and returns the pointer to it."""
        number = next(_numbers)
        with self._lock:
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
        with self._lock:
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
        with self._lock:
            allocation = self.check(pointer)
            if pointer.address != allocation.address:
                raise PointerError(
                    f"address {pointer.address:#x} is {pointer.address - allocation.address} bytes "
                    f"into its allocation: free {allocation.address:#x}",
                    address=pointer.address,
                    allocation_address=allocation.address,
                )
            if allocation.users:
                raise BusyError(
                    f"address {pointer.address:#x} on channel {allocation.channel} is in use by "
                    f"{', '.join(dict.fromkeys(allocation.users))}: wait for the end first",
                    channel=allocation.channel,
                    address=pointer.address,
                    users=tuple(allocation.users),
                )
            del self._allocations[allocation.number]
        return allocation

    def hold(self, pointer: Any, user: str) -> None:
        """The operation ``user`` needs the allocation until released: it cannot be freed."""
        with self._lock:
            self.check(pointer).users.append(user)

    def release(self, pointer: Any, user: str) -> None:
        """The operation that held the allocation is over."""
        with self._lock:
            self.check(pointer).users.remove(user)


def checked_size(name: str, value: Any, minimum: int = 0) -> int:
    """``value`` as an integer of at least ``minimum``. Raises :class:`InvalidArgumentError`."""
    size = _integer(value)
    if size < minimum:
        raise InvalidArgumentError(
            f"{name} is {value!r}: expected an integer of at least {minimum}",
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
