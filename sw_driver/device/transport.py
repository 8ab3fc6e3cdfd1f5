"""What the driver needs of a device: the one interface between them.

A transport moves 64-byte lines over the host link and nothing more; registers are lines at
their addresses. Behind it stands the golden model, the Verilated RTL or whatever else can move
lines. The driver does not know which.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LINE_BYTES",
    "LINK_FABRIC_CYCLES_PER_LINE",
    "WINDOW_BYTES",
    "DeviceFault",
    "DeviceTimeout",
    "Transport",
    "arbiter_window",
    "check_bytes",
    "kernel_window",
]

LINE_BYTES = 64
"""Bytes the host link moves at once."""

LINK_FABRIC_CYCLES_PER_LINE = 2
"""What a line takes of the host link: DDR4-800 at 64 bits moves 32 bytes a cycle of 200 MHz."""

WINDOW_BYTES = 4096
"""Bytes of each of the two register windows at the top of a channel's address range."""


class DeviceFault(RuntimeError):
    """The device broke its own rules, for example a DRAM timing constraint in the simulation.

    Nothing is to be trusted from there on. ``dram_trace`` and ``wave`` of
    :class:`~sw_driver.axdimm.backends.BackendOptions` record what led to it.
    """


class DeviceTimeout(TimeoutError):
    """The device did not reach the awaited state in the given number of fabric cycles."""


class Transport(Protocol):
    """A module with one or more channels, reached over its host link.

    Calls for different channels may be made from different threads at once; calls for one channel
    must not overlap. What is about simulated time is here as of a transport that has none, for
    those to inherit.
    """

    channels: int
    """Channels of the module."""

    capacity_bytes: int
    """Bytes of one channel's address range, the register windows at its top included."""

    timed: bool = False
    """Whether :meth:`fabric_cycles` means anything; a purely functional model has no time."""

    fabric_mhz: float
    """Fabric clock of the module, by which :meth:`fabric_cycles` become time."""

    name: str
    """The backend's name, as in reports."""

    subnormals: str = "kept"
    """What becomes of subnormal numbers in its kernels: ``kept`` or ``flushed``."""

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """Writes whole lines over the host link, from byte ``address`` (a multiple of 64)."""
        ...

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Reads whole lines over the host link; late reads are repeated until they succeed."""
        ...

    def poll(
        self,
        channel: int,
        address: int,
        mask: int,
        value: int,
        *,
        interval_fabric_cycles: int,
        timeout_fabric_cycles: int,
    ) -> int:
        """Reads the 64-bit register at ``address`` until ``(it & mask) == value``; returns it.

        Raises :class:`DeviceTimeout` when the state is not reached in time.
        """
        ...

    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """Puts bytes into the DRAM without the link, the clock or the arbiter noticing."""
        ...

    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Takes bytes from the DRAM without the link, the clock or the arbiter noticing."""
        ...

    def fabric_cycles(self, channel: int) -> int:
        """Fabric cycles that the channel has been simulated for; 0 on an untimed backend."""
        return 0

    def now(self, channel: int) -> int:
        """The channel's simulated time in fabric cycles, also of when nobody called for it.

        The channels and the threads of the host share this time. 0 on an untimed backend.
        """
        return 0

    def host_time(self) -> int:
        """The calling thread's simulated time: its next call does not begin before."""
        return 0

    def set_host_time(self, fabric_cycle: int) -> None:
        """Sets the calling thread's simulated time, for example to when what it awaited ended."""

    def engage(self, channel: int, fabric_cycle: int) -> None:
        """The channel may be called from that time on, and before any later use of the link.

        Other channels' calls do not use the link after that time until the channel has got
        further, was let go, or seems to have been forgotten.
        """

    def disengage(self, channel: int) -> None:
        """The channel is not waited for any more; see :meth:`engage`."""

    def record_link(self, record: bool) -> None:
        """Whether uses of the host link are recorded from now on."""

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        """The channel's uses of the link since it was last asked, and forgets them.

        Shape (n, 2): begin and end in fabric cycles of :meth:`now`'s time, in order, disjoint from
        each other and from the other channels'.
        """
        return np.empty((0, 2), dtype=np.uint64)

    def close(self) -> None:
        """Releases the device. Calling it twice does no harm."""
        ...


def check_bytes(
    transport: Transport, channel: int, address: int, nbytes: int, *, lines: bool = True
) -> None:
    """Raises ``ValueError`` unless these are bytes, with ``lines`` whole ones, of a channel."""
    if not 0 <= channel < transport.channels:
        raise ValueError(f"channel must be from 0 to {transport.channels - 1}, got {channel}")
    if address < 0 or nbytes < 0 or address + nbytes > transport.capacity_bytes:
        raise ValueError(
            f"{nbytes} bytes at {address:#x} are not within the channel's "
            f"{transport.capacity_bytes} bytes"
        )
    if lines and (address % LINE_BYTES or nbytes % LINE_BYTES):
        raise ValueError(
            f"{nbytes} bytes at {address:#x} are not whole lines of {LINE_BYTES} bytes"
        )


def arbiter_window(capacity_bytes: int) -> int:
    """Byte address of the arbiter's registers: the last 4 KB of the channel."""
    return capacity_bytes - WINDOW_BYTES


def kernel_window(capacity_bytes: int) -> int:
    """Byte address of the kernel's registers (acceleration mode): below the arbiter's."""
    return capacity_bytes - 2 * WINDOW_BYTES
