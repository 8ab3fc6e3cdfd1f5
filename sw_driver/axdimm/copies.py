"""Copies between any two memories: piece by piece, in simulated time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..device.errors import AxdimmError, ClosedError, RangeError
from ..device.link import Leg, Link, reserve_together
from ..device.memory import AllocationTable, AxdimmPointer, HostPointer, Memory, Pointer
from ..device.transport import LINE_BYTES, LINK_FABRIC_CYCLES_PER_LINE
from ..runtime.context import Context
from ..runtime.handles import Handle
from .channel import Channel, Mode, ModePolicy

__all__ = [
    "COPY_CHUNK_BYTES",
    "BufferEnd",
    "ChannelEnd",
    "End",
    "MemoryEnd",
    "check_overlap",
    "copy",
]

COPY_CHUNK_BYTES = 1 << 20
"""Bytes that a copy moves at once: progress is told, and closing takes effect, in between."""


class End:
    """One end of a copy: memory of the program unless a subclass says otherwise.

    Parameters
    ----------
    allocation: the table that has it, and the pointer; None for memory that nobody allocated.
    """

    channel: Channel | None = None
    """The channel in whose DRAM the bytes are, if any."""
    backdoor = False
    """Whether the copy is done without link, clock and arbiter."""

    def __init__(self, allocation: tuple[AllocationTable[Any], Pointer] | None) -> None:
        self.allocation = allocation

    def hold(self, user: str) -> None:
        """Notes that the operation ``user`` needs the allocation, so that it cannot be freed."""
        if self.allocation is not None:
            table, pointer = self.allocation
            table.hold(pointer, user)

    def release(self, user: str) -> None:
        """Notes that the operation ``user`` needs the allocation no more."""
        if self.allocation is not None:
            table, pointer = self.allocation
            table.release(pointer, user)

    def legs(self, nbytes: int, *, writing: bool) -> Sequence[Leg]:
        """The links that the transfer occupies here, and for how long at least."""
        return ()

    def read(self, offset: int, destination: NDArray[np.uint8], what: str) -> None:
        """Copies bytes from ``offset`` on to ``destination``."""
        raise NotImplementedError

    def write(self, offset: int, source: NDArray[np.uint8], what: str) -> None:
        """Copies ``source`` to the bytes from ``offset`` on."""
        raise NotImplementedError


class BufferEnd(End):
    """Memory of the program, or what ``MallocHost`` has allocated."""

    def __init__(
        self,
        view: NDArray[np.uint8],
        allocation: tuple[AllocationTable[HostPointer], HostPointer] | None = None,
    ) -> None:
        super().__init__(allocation)
        self.view = view

    def read(self, offset: int, destination: NDArray[np.uint8], what: str) -> None:
        destination[:] = self.view[offset : offset + destination.size]

    def write(self, offset: int, source: NDArray[np.uint8], what: str) -> None:
        self.view[offset : offset + source.size] = source


class MemoryEnd(End):
    """An allocation of GPU or NVMe memory."""

    def __init__(self, memory: Memory, pointer: Pointer) -> None:
        super().__init__((memory.allocations, pointer))
        self._memory = memory
        self._pointer = pointer

    def legs(self, nbytes: int, *, writing: bool) -> Sequence[Leg]:
        return self._memory.legs(self._pointer, nbytes, writing=writing)

    def read(self, offset: int, destination: NDArray[np.uint8], what: str) -> None:
        self._memory.read(self._pointer + offset, destination)

    def write(self, offset: int, source: NDArray[np.uint8], what: str) -> None:
        self._memory.write(self._pointer + offset, source)


class ChannelEnd(End):
    """An allocation in the DRAM of a channel."""

    def __init__(
        self, channel: Channel, pointer: AxdimmPointer, context: Context, backdoor: bool
    ) -> None:
        super().__init__((channel.allocations, pointer))
        self.channel: Channel = channel
        self.backdoor = backdoor
        self._pointer = pointer
        self._transport = context.transport

    def legs(self, nbytes: int, *, writing: bool) -> Sequence[Leg]:
        if self.backdoor:
            return ()
        # Copies have the link one after the other (paper section 5.2): if they took turns, all
        # would end late. How long each really takes is up to the simulated link.
        lines = -(-nbytes // LINE_BYTES)
        cycles = LINK_FABRIC_CYCLES_PER_LINE * lines
        return (Leg(self.channel.link, cycles * 1000 / self._transport.fabric_mhz),)

    def read(self, offset: int, destination: NDArray[np.uint8], what: str) -> None:
        address = self._pointer.address + offset
        number, size = self.channel.number, destination.size
        if self.backdoor:
            destination[:] = self._transport.backdoor_read(number, address, size)
            self.channel.count("backdoor_to_host", size)
        else:
            destination[:] = self.channel.read(address, size, what)
            self.channel.count("link_to_host", size)

    def write(self, offset: int, source: NDArray[np.uint8], what: str) -> None:
        address = self._pointer.address + offset
        if self.backdoor:
            self._transport.backdoor_write(self.channel.number, address, source)
            self.channel.count("backdoor_to_device", source.size)
        else:
            self.channel.write(address, source, what)
            self.channel.count("link_to_device", source.size)


def copy(
    destination: End,
    source: End,
    nbytes: int,
    *,
    policy: ModePolicy,
    context: Context,
    handle: Handle[Any],
) -> None:
    """Copies ``nbytes`` from the start of ``source`` to that of ``destination``.

    The transfer goes straight from one end to the other, as by DMA, at the pace of the slowest of
    what it occupies. Raises what the ends raise; then the first ``copied_bytes`` (in the
    exception's ``details``) are copied and the bytes from there on are as they were, except in NVMe
    storage: an allocation whose write failed cannot be used any more. Of no bytes it is nothing,
    which needs no mode and no time.
    """
    if not nbytes:
        return
    transport = context.transport
    reached = {end.channel.number: end for end in (destination, source) if end.channel is not None}
    with ExitStack() as held:
        # All in the order of their numbers, so that two copies cannot wait for each other.
        for _, end in sorted(reached.items()):
            assert end.channel is not None
            held.enter_context(end.channel.in_mode(None if end.backdoor else Mode.NORMAL, policy))
        began = transport.host_time()
        try:
            _move(destination, source, nbytes, context, handle)
        except AxdimmError as error:
            error.details.setdefault("copied_bytes", handle.progress.done)
            raise
        finally:
            for _, end in sorted(reached.items()):
                assert end.channel is not None
                end.channel.occupied_until = transport.host_time()
                _record(end, handle, began, nbytes, context)


def _record(end: End, handle: Handle[Any], began: int, nbytes: int, context: Context) -> None:
    if context.timeline is None or end.channel is None:
        return
    if end.backdoor:
        what = f"{handle.what}, by the backdoor"
        context.timeline.instant(end.channel.track, what, began, bytes=nbytes)
        return
    end.channel.record(handle.what, "copy", began, bytes=nbytes)


def _move(
    destination: End, source: End, nbytes: int, context: Context, handle: Handle[Any]
) -> None:
    transport = context.transport
    link = next((end.channel.link for end in (destination, source) if end.channel), None)
    legs = [*source.legs(nbytes, writing=False), *destination.legs(nbytes, writing=True)]
    durations = _durations(legs, link, context) if transport.timed else {}
    longest = max(durations.values(), default=0)
    began = 0
    if durations:
        context.order.turn(transport.host_time(), handle.what)
        began = reserve_together(durations, transport.host_time())
        transport.set_host_time(began)
        for each, duration in durations.items():
            # The link's own uses are recorded line by line, as they happen.
            if context.timeline is not None and each is not link:
                context.timeline.add(
                    each.name, handle.what, began, began + duration, "transfer", bytes=nbytes
                )
    for offset in range(0, nbytes, COPY_CHUNK_BYTES):
        if context.closing.is_set():
            raise ClosedError(f"the device was closed during {handle.what}, after {offset} bytes")
        size = min(COPY_CHUNK_BYTES, nbytes - offset)
        _move_piece(destination, source, offset, size, handle.what)
        # The link may have been faster than what is at the other end, or slower.
        due = began + longest * (offset + size) // nbytes
        if transport.host_time() < due:
            transport.set_host_time(due)
        handle.advance(size)
    if link is not None and link in durations:
        # Lines that came late were asked for again, so it took longer than was reserved.
        link.extend(began + durations[link], transport.host_time())


def _move_piece(destination: End, source: End, offset: int, size: int, what: str) -> None:
    if isinstance(source, BufferEnd):
        destination.write(offset, source.view[offset : offset + size], what)
    elif isinstance(destination, BufferEnd):
        source.read(offset, destination.view[offset : offset + size], what)
    else:
        piece = np.empty(size, dtype=np.uint8)
        source.read(offset, piece, what)
        destination.write(offset, piece, what)


def _durations(legs: Sequence[Leg], link: Link | None, context: Context) -> dict[Link, int]:
    """Fabric cycles for which the transfer occupies each each."""
    longest_ns = max((leg.duration_ns for leg in legs), default=0.0)
    durations: dict[Link, float] = {}
    for leg in legs:
        if leg.link is link:
            # Twice if both ends are in the module.
            durations[leg.link] = durations.get(leg.link, 0.0) + leg.duration_ns
        else:
            # What could go faster goes at the pace of the slowest.
            durations[leg.link] = longest_ns
    cycle_ns = 1000 / context.transport.fabric_mhz
    return {each: math.ceil(value / cycle_ns) for each, value in durations.items()}


def check_overlap(destination: End, source: End, nbytes: int) -> None:
    """Raises :class:`~sw_driver.device.errors.RangeError` if the ends share bytes."""
    if isinstance(destination, BufferEnd) and isinstance(source, BufferEnd):
        shared = np.may_share_memory(destination.view[:nbytes], source.view[:nbytes])
        addresses = (destination.view.ctypes.data, source.view.ctypes.data)
    elif isinstance(destination, BufferEnd) or isinstance(source, BufferEnd):
        return
    else:
        assert destination.allocation is not None
        assert source.allocation is not None
        one, other = destination.allocation[1], source.allocation[1]
        addresses = (one.address, other.address)
        shared = (
            one.allocation == other.allocation
            and one.address < other.address + nbytes
            and other.address < one.address + nbytes
        )
    if shared and nbytes:
        raise RangeError(
            f"{nbytes} bytes at {addresses[1]:#x} and at {addresses[0]:#x} overlap: copy by way of "
            "another buffer",
            addresses=addresses,
            nbytes=nbytes,
        )
