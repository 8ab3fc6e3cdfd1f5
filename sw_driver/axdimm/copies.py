"""Copies between any two memories: piece by piece, in simulated time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import AxdimmError, ClosedError, OverlapError
from ..memory.allocations import AllocationTable
from ..memory.interface import Leg, Memory
from ..memory.pointers import AxdimmPointer, HostPointer, Pointer
from ..runtime.handles import Handle
from ..runtime.schedule import Schedule, reserve_together
from ..transport import LINE_BYTES, LINK_FABRIC_CYCLES_PER_LINE, DeviceFault, DeviceTimeout
from .channel import Channel, Mode, ModePolicy, Shared

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
"""What is moved at once: progress is told, and closing takes effect, in between."""


class End(Protocol):
    """One end of a copy."""

    @property
    def channel(self) -> Channel | None:
        """Whose DRAM it is in, if any."""
        ...

    def hold(self, user: str) -> None:
        """``user`` needs the allocation from now on."""
        ...

    def release(self, user: str) -> None:
        """``user`` needs it no more."""
        ...

    def using(self, policy: ModePolicy) -> AbstractContextManager[None]:
        """In force while bytes are moved."""
        ...

    def legs(self, nbytes: int, *, writing: bool) -> Sequence[Leg]:
        """What the transfer occupies, and for how long at least."""
        ...

    def read(self, offset: int, destination: NDArray[np.uint8], what: str) -> None:
        """Copies bytes from ``offset`` on to ``destination``."""
        ...

    def write(self, offset: int, source: NDArray[np.uint8], what: str) -> None:
        """Copies ``source`` to the bytes from ``offset`` on."""
        ...


@dataclass
class BufferEnd:
    """Memory of the program, or pinned memory of the host."""

    view: NDArray[np.uint8]
    allocation: tuple[AllocationTable[HostPointer], HostPointer] | None = None
    """Where the memory is pinned."""

    channel = None

    def hold(self, user: str) -> None:
        if self.allocation is not None:
            table, pointer = self.allocation
            table.hold(pointer, user)

    def release(self, user: str) -> None:
        if self.allocation is not None:
            table, pointer = self.allocation
            table.release(pointer, user)

    def using(self, policy: ModePolicy) -> AbstractContextManager[None]:
        return nullcontext()

    def legs(self, nbytes: int, *, writing: bool) -> Sequence[Leg]:
        return ()

    def read(self, offset: int, destination: NDArray[np.uint8], what: str) -> None:
        destination[:] = self.view[offset : offset + destination.size]

    def write(self, offset: int, source: NDArray[np.uint8], what: str) -> None:
        self.view[offset : offset + source.size] = source


@dataclass
class MemoryEnd:
    """An allocation of host, GPU or NVMe memory."""

    memory: Memory
    pointer: Pointer

    channel = None

    def hold(self, user: str) -> None:
        self.memory.allocations.hold(self.pointer, user)

    def release(self, user: str) -> None:
        self.memory.allocations.release(self.pointer, user)

    def using(self, policy: ModePolicy) -> AbstractContextManager[None]:
        return nullcontext()

    def legs(self, nbytes: int, *, writing: bool) -> Sequence[Leg]:
        return self.memory.legs(self.pointer, nbytes, writing=writing)

    def read(self, offset: int, destination: NDArray[np.uint8], what: str) -> None:
        self.memory.read(self.pointer + offset, destination)

    def write(self, offset: int, source: NDArray[np.uint8], what: str) -> None:
        self.memory.write(self.pointer + offset, source)


@dataclass
class ChannelEnd:
    """An allocation in the DRAM of a channel."""

    channel: Channel
    pointer: AxdimmPointer
    shared: Shared
    backdoor: bool

    def hold(self, user: str) -> None:
        self.channel.allocations.hold(self.pointer, user)

    def release(self, user: str) -> None:
        self.channel.allocations.release(self.pointer, user)

    @contextmanager
    def using(self, policy: ModePolicy) -> Iterator[None]:
        with self.channel.in_mode(None if self.backdoor else Mode.NORMAL, policy):
            yield

    def legs(self, nbytes: int, *, writing: bool) -> Sequence[Leg]:
        if self.backdoor:
            return ()
        # Copies have the link one after the other (paper section 5.2): if they took turns, all
        # would end late. How long each really takes is up to the simulated link.
        lines = -(-nbytes // LINE_BYTES)
        cycles = LINK_FABRIC_CYCLES_PER_LINE * lines
        return (Leg(self.shared.link, cycles * 1000 / self.shared.transport.fabric_mhz),)

    def read(self, offset: int, destination: NDArray[np.uint8], what: str) -> None:
        address = self.pointer.address + offset
        number, size = self.channel.number, destination.size
        if self.backdoor:
            destination[:] = self.shared.transport.backdoor_read(number, address, size)
            self.channel.count("backdoor_to_host", size)
        else:
            destination[:] = self.channel.read(address, size, what)
            self.channel.count("link_to_host", size)

    def write(self, offset: int, source: NDArray[np.uint8], what: str) -> None:
        address = self.pointer.address + offset
        if self.backdoor:
            self.shared.transport.backdoor_write(self.channel.number, address, source)
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
    shared: Shared,
    handle: Handle[Any],
) -> None:
    """Copies ``nbytes`` from the start of ``source`` to that of ``destination``.

    The transfer goes straight from one end to the other, as by DMA, at the pace of the slowest of
    what it occupies. Raises what the ends raise; then the first ``copied_bytes`` (in the
    exception's ``details``) are copied and the bytes from there on are as they were, except on an
    NVMe device whose write failed: see :class:`~sw_driver.errors.LostDataError`.
    """
    ends = (destination, source)
    channels = sorted({end.channel.number: end for end in ends if end.channel is not None}.items())
    with ExitStack() as held:
        # All in the order of their numbers, so that two copies cannot wait for each other.
        for _, end in channels:
            held.enter_context(end.using(policy))
        began = shared.transport.host_time()
        try:
            _move(destination, source, nbytes, shared, handle)
        except (AxdimmError, DeviceFault, DeviceTimeout) as error:
            if isinstance(error, AxdimmError):
                error.details.setdefault("copied_bytes", handle.progress.done)
            raise
        finally:
            for _, end in channels:
                assert end.channel is not None
                end.channel.occupied_until = shared.transport.host_time()
                _record(end, handle, began, nbytes, shared)


def _record(end: End, handle: Handle[Any], began: int, nbytes: int, shared: Shared) -> None:
    if shared.timeline is None or end.channel is None or not nbytes:
        return
    if isinstance(end, ChannelEnd) and end.backdoor:
        shared.timeline.instant(
            end.channel.track, f"{handle.what}, by the backdoor", began, bytes=nbytes
        )
        return
    end.channel.record(handle.what, "copy", began, bytes=nbytes)


def _move(destination: End, source: End, nbytes: int, shared: Shared, handle: Handle[Any]) -> None:
    durations = _durations(
        [*source.legs(nbytes, writing=False), *destination.legs(nbytes, writing=True)], shared
    )
    longest = max(durations.values(), default=0)
    began = 0
    if durations:
        shared.order.turn(shared.transport.host_time(), handle.what)
        began = reserve_together(durations, shared.transport.host_time())
        shared.transport.set_host_time(began)
        _show(durations, began, handle.what, nbytes, shared)
    for offset in range(0, nbytes, COPY_CHUNK_BYTES):
        if shared.closing.is_set():
            raise ClosedError(f"the device was closed during {handle.what}, after {offset} bytes")
        size = min(COPY_CHUNK_BYTES, nbytes - offset)
        _move_piece(destination, source, offset, size, handle.what)
        # The link may have been faster than what is at the other end, or slower.
        due = began + longest * (offset + size) // nbytes
        if shared.transport.host_time() < due:
            shared.transport.set_host_time(due)
        handle.advance(size)
    if shared.link in durations:
        # Lines that came late were asked for again, so it took longer than was reserved.
        shared.link.extend(began + durations[shared.link], shared.transport.host_time())


def _move_piece(destination: End, source: End, offset: int, size: int, what: str) -> None:
    if isinstance(source, BufferEnd):
        destination.write(offset, source.view[offset : offset + size], what)
    elif isinstance(destination, BufferEnd):
        source.read(offset, destination.view[offset : offset + size], what)
    else:
        piece = np.empty(size, dtype=np.uint8)
        source.read(offset, piece, what)
        destination.write(offset, piece, what)


def _durations(legs: Sequence[Leg], shared: Shared) -> dict[Schedule, int]:
    """For how many fabric cycles the transfer occupies what; nothing on an untimed backend."""
    if not shared.transport.timed or not legs:
        return {}
    longest_ns = max(leg.duration_ns for leg in legs)
    durations: dict[Schedule, float] = {}
    for leg in legs:
        if leg.schedule is shared.link:
            # Twice if both ends are in the module.
            durations[leg.schedule] = durations.get(leg.schedule, 0.0) + leg.duration_ns
        else:
            # What could go faster goes at the pace of the slowest.
            durations[leg.schedule] = longest_ns
    cycle_ns = 1000 / shared.transport.fabric_mhz
    return {schedule: math.ceil(value / cycle_ns) for schedule, value in durations.items()}


def _show(
    durations: dict[Schedule, int], began: int, what: str, nbytes: int, shared: Shared
) -> None:
    if shared.timeline is None:
        return
    for schedule, duration in durations.items():
        # The link's own uses are recorded line by line, as they happen.
        if schedule is not shared.link:
            shared.timeline.add(
                schedule.name, what, began, began + duration, "transfer", bytes=nbytes
            )


def check_overlap(destination: End, source: End, nbytes: int) -> None:
    """Raises :class:`~sw_driver.errors.OverlapError` if the ends share bytes."""
    if isinstance(destination, BufferEnd) and isinstance(source, BufferEnd):
        shared = np.may_share_memory(destination.view[:nbytes], source.view[:nbytes])
        addresses = (destination.view.ctypes.data, source.view.ctypes.data)
    elif isinstance(destination, BufferEnd) or isinstance(source, BufferEnd):
        return
    else:
        one, other = destination.pointer, source.pointer  # type: ignore[attr-defined]
        addresses = (one.address, other.address)
        shared = (
            one.allocation == other.allocation
            and one.address < other.address + nbytes
            and other.address < one.address + nbytes
        )
    if shared and nbytes:
        raise OverlapError(
            f"{nbytes} bytes at {addresses[1]:#x} and at {addresses[0]:#x} overlap: copy by way of "
            "another buffer",
            addresses=addresses,
            nbytes=nbytes,
        )
