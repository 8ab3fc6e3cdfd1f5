"""Copies between any two memories: in pieces, in simulated time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..device.clock import Domain, Steps
from ..device.errors import AxdimmError, RangeError
from ..device.link import LINK_FABRIC_CYCLES_PER_LINE, Leg, ReservedLink, first_free_together
from ..device.memory import Allocation, Memory, Pointer
from ..device.streams import Handle
from ..device.timeline import Timeline
from .channel import Channel, Mode, ModePolicy
from .transport import LINE_BYTES, Transport

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
"""Bytes of a piece of a copy. Between pieces, progress is updated and closing takes effect."""


class End:
    """One end of a copy: memory of the program, unless a subclass states otherwise.

    Parameters
    ----------
    allocation: allocation of the bytes; None for memory that the driver did not allocate.
    address: address of the first byte.
    """

    channel: Channel | None = None
    """Channel of the bytes' DRAM, if any."""
    backdoor = False
    """True if the copy bypasses link, clock and arbiter."""

    def __init__(self, allocation: Allocation | None, address: int) -> None:
        self.allocation = allocation
        self.address = address

    def legs(self, nbytes: int, *, writing: bool) -> Sequence[Leg]:
        """Return the links that the transfer occupies here, with their minimum durations."""
        return ()

    def read(self, offset: int, destination: NDArray[np.uint8], label: str) -> Steps:
        """Fill ``destination`` from ``offset`` on."""
        raise NotImplementedError

    def write(self, offset: int, source: NDArray[np.uint8], label: str) -> Steps:
        """Copy ``source`` to ``offset``."""
        raise NotImplementedError


class BufferEnd(End):
    """Memory of the program, or an allocation of ``MallocHost``."""

    def __init__(
        self,
        view: NDArray[np.uint8],
        allocation: Allocation | None = None,
    ) -> None:
        super().__init__(allocation, 0)
        self.view = view

    def read(self, offset: int, destination: NDArray[np.uint8], label: str) -> Steps:
        yield from ()
        destination[:] = self.view[offset : offset + destination.size]

    def write(self, offset: int, source: NDArray[np.uint8], label: str) -> Steps:
        yield from ()
        self.view[offset : offset + source.size] = source


class MemoryEnd(End):
    """An allocation of GPU or NVMe memory."""

    def __init__(self, memory: Memory, pointer: Pointer, allocation: Allocation) -> None:
        super().__init__(allocation, pointer.address)
        self._memory = memory
        self._pointer = pointer

    def legs(self, nbytes: int, *, writing: bool) -> Sequence[Leg]:
        return self._memory.legs(self._pointer, nbytes, writing=writing)

    def read(self, offset: int, destination: NDArray[np.uint8], label: str) -> Steps:
        yield from ()
        self._memory.read(self._pointer + offset, destination)

    def write(self, offset: int, source: NDArray[np.uint8], label: str) -> Steps:
        yield from ()
        self._memory.write(self._pointer + offset, source)


class ChannelEnd(End):
    """An allocation in the DRAM of a channel."""

    def __init__(
        self,
        channel: Channel,
        address: int,
        allocation: Allocation,
        transport: Transport,
        backdoor: bool,
    ) -> None:
        super().__init__(allocation, address)
        self.channel: Channel = channel
        self.backdoor = backdoor
        self._transport = transport

    def legs(self, nbytes: int, *, writing: bool) -> Sequence[Leg]:
        if self.backdoor:
            return ()
        # Copies use the link one after the other (paper section 5.2): interleaved, all would end
        # late. The simulated link decides how long each really takes.
        lines = -(-nbytes // LINE_BYTES)
        cycles = LINK_FABRIC_CYCLES_PER_LINE * lines
        return (Leg(self.channel.link, cycles * self.channel.domain.cycle_ns),)

    def read(self, offset: int, destination: NDArray[np.uint8], label: str) -> Steps:
        yield from ()
        address = self.address + offset
        number, size = self.channel.number, destination.size
        if self.backdoor:
            destination[:] = self._transport.backdoor_read(number, address, size)
            self.channel.count("backdoor_to_host", size)
        else:
            destination[:] = yield from self.channel.read(address, size, label)
            self.channel.count("link_to_host", size)

    def write(self, offset: int, source: NDArray[np.uint8], label: str) -> Steps:
        yield from ()
        address = self.address + offset
        if self.backdoor:
            self._transport.backdoor_write(self.channel.number, address, source)
            self.channel.count("backdoor_to_device", source.size)
        else:
            yield from self.channel.write(address, source, label)
            self.channel.count("link_to_device", source.size)


def copy(
    destination: End,
    source: End,
    nbytes: int,
    *,
    policy: ModePolicy,
    timeline: Timeline | None,
    handle: Handle[Any],
) -> Steps:
    """Copy ``nbytes`` from the start of ``source`` to the start of ``destination``.

    The transfer goes directly from one end to the other, as by DMA, at the pace of the slowest leg.
    Raises the errors of the ends; ``details["copied_bytes"]`` then counts the copied bytes. The
    bytes behind them stay as they were. NVMe storage differs: an allocation with a failed write is
    unusable. A copy of 0 bytes needs no mode and takes no time.
    """
    if not nbytes:
        return
    domain = handle.domain
    reached = {
        end.channel.number: end for end in (destination, source) if isinstance(end, ChannelEnd)
    }
    taken: list[ChannelEnd] = []
    try:
        # Take channels in the order of their numbers, so that two copies cannot deadlock.
        for _, end in sorted(reached.items()):
            mode = None if end.backdoor else Mode.NORMAL
            yield from end.channel.take_in_mode(handle, mode, policy)
            taken.append(end)
        began = domain.now
        try:
            yield from _move(destination, source, nbytes, timeline, handle)
        except AxdimmError as error:
            error.details.setdefault("copied_bytes", handle.progress.done)
            raise
        finally:
            for end in taken:
                end.channel.occupied_until = domain.now
                if timeline is not None:
                    _record(end, handle, began, nbytes, timeline)
    finally:
        for end in taken:
            end.channel.leave()


def _record(
    end: ChannelEnd, handle: Handle[Any], began: int, nbytes: int, timeline: Timeline
) -> None:
    if end.backdoor:
        label = f"{handle.label}, by the backdoor"
        timeline.instant(end.channel.track, label, began, bytes=nbytes)
        return
    end.channel.record(handle.label, "copy", began, bytes=nbytes)


def _move(
    destination: End, source: End, nbytes: int, timeline: Timeline | None, handle: Handle[Any]
) -> Steps:
    domain = handle.domain
    link: ReservedLink | None = None
    durations: dict[ReservedLink, int] = {}
    if domain.timed:
        link = next((end.channel.link for end in (destination, source) if end.channel), None)
        legs = [*source.legs(nbytes, writing=False), *destination.legs(nbytes, writing=True)]
        durations = _durations(legs, link, domain.cycle_ns)
    longest = began = 0
    if durations:
        longest = max(durations.values())
        # The uses of the host link are recorded line by line, as they happen.
        others = {other: duration for other, duration in durations.items() if other is not link}
        yield
        yield from _until_free(others, domain)
        if link in durations:
            # The earlier copy's end is unknown: late lines are requested again. Wait for its end.
            before, link.last = link.last, handle
            if before is not None:
                yield before
                yield from _until_free(others, domain)
        began = domain.now
        for other, duration in others.items():
            other.reserve(began, duration)
            if timeline is not None:
                timeline.add(
                    other.name, handle.label, began, began + duration, "transfer", bytes=nbytes
                )
    for offset in range(0, nbytes, COPY_CHUNK_BYTES):
        if offset or durations:
            yield
        size = min(COPY_CHUNK_BYTES, nbytes - offset)
        yield from _move_piece(destination, source, offset, size, handle.label)
        # The slowest leg sets the pace, even if the link was faster.
        domain.now = max(domain.now, began + longest * (offset + size) // nbytes)
        handle.reach(offset + size)


def _until_free(links: Mapping[ReservedLink, int], domain: Domain) -> Steps:
    """Wait until all links are free together, each for its duration."""
    while (free := first_free_together(links, domain.now)) > domain.now:
        domain.now = free
        yield


def _move_piece(destination: End, source: End, offset: int, size: int, label: str) -> Steps:
    if isinstance(source, BufferEnd):
        yield from destination.write(offset, source.view[offset : offset + size], label)
    elif isinstance(destination, BufferEnd):
        yield from source.read(offset, destination.view[offset : offset + size], label)
    else:
        piece = np.empty(size, dtype=np.uint8)
        yield from source.read(offset, piece, label)
        yield from destination.write(offset, piece, label)


def _durations(
    legs: Sequence[Leg], link: ReservedLink | None, cycle_ns: float
) -> dict[ReservedLink, int]:
    """Return the fabric cycles for which the transfer occupies each link."""
    longest_ns = max((leg.duration_ns for leg in legs), default=0.0)
    durations: dict[ReservedLink, float] = {}
    for leg in legs:
        if leg.link is link:
            # Both legs, if both ends are in the module.
            durations[leg.link] = durations.get(leg.link, 0.0) + leg.duration_ns
        else:
            # A faster link is held at the pace of the slowest.
            durations[leg.link] = longest_ns
    return {link: math.ceil(value / cycle_ns) for link, value in durations.items()}


def check_overlap(destination: End, source: End, nbytes: int) -> None:
    """Raise :class:`~sw_driver.device.errors.RangeError` if the ends share bytes."""
    if isinstance(destination, BufferEnd) and isinstance(source, BufferEnd):
        shared = np.may_share_memory(destination.view[:nbytes], source.view[:nbytes])
        addresses = (destination.view.ctypes.data, source.view.ctypes.data)
    elif isinstance(destination, BufferEnd) or isinstance(source, BufferEnd):
        return
    else:
        addresses = one, other = destination.address, source.address
        same = destination.allocation is source.allocation
        shared = same and one < other + nbytes and other < one + nbytes
    if shared and nbytes:
        raise RangeError(
            f"{nbytes} bytes at {addresses[1]:#x} and at {addresses[0]:#x} overlap: copy by way of "
            "another buffer",
            addresses=addresses,
            nbytes=nbytes,
        )
