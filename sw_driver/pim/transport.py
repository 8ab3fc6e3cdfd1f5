"""What the driver needs of a stack with PIMs: the one interface between them.

Registers over AXI4-Lite, memory over the host's port, and time. Behind it stands the golden model,
the Verilated RTL or whatever else has these; the driver does not know which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from sw_driver.device.transport import DeviceFault

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["QUIET_LIMIT_CYCLES", "PimTransport", "no_memory"]

QUIET_LIMIT_CYCLES = 200_000
"""Cycles without a change of any counter after which a wait is given up. In a sound pool the
longest pauses are those of memory, some hundreds of cycles."""


class PimTransport(Protocol):
    """A stack with its pool. Calls must not overlap.

    Every call returns: one that the device does not answer raises
    :class:`~sw_driver.device.transport.DeviceTimeout`, and one that it refuses, or in which it
    breaks its own rules, :class:`~sw_driver.device.transport.DeviceFault`. It refuses memory that
    no bank holds, for which :class:`~sw_driver.pim.device.Pim` does not ask it.
    """

    name: str
    """The backend's name, as in reports."""

    config: PimConfig
    """What the stack was made for."""

    timed: bool
    """Whether :meth:`cycles` and the counters of cycles mean anything."""

    computes: bool
    """Whether memory holds data and works compute; a model of the time alone does not."""

    def read_register(self, offset_bytes: int) -> int:
        """The 64 bits of the register at ``offset_bytes`` (a multiple of 8)."""
        ...

    def write_register(self, offset_bytes: int, value: int) -> None:
        """Writes the 64 bits of the register at ``offset_bytes``."""
        ...

    def read_memory(self, address_bytes: int, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of the stack as the host sees them: of a work's result all or nothing.

        Where a work that has not completed writes, this may take until it has.
        """
        ...

    def write_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        """Writes bytes of the stack, visible to works that are offered after it."""
        ...

    def post_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        """Writes bytes that banks hold, visible to all memory accesses of this transport and of
        rings after it, though perhaps not yet to banks: it does not wait for the answers."""
        ...

    def advance(self, cycles: int) -> None:
        """Lets time pass: ``cycles`` of the fabric clock, or fewer, one at least, if a ring's
        interrupt is pending and enabled, or becomes so.

        A model without a clock completes the oldest of the works that run, if there is one.
        """
        ...

    def cycles(self) -> int:
        """Cycles that have passed; 0 on a model without a clock."""
        ...

    def close(self) -> None:
        """Releases the device. Calling it twice does no harm."""
        ...


def no_memory(what: str, config: PimConfig) -> DeviceFault:
    """The error of an access, called ``what``, of which no bank holds some or all bytes."""
    return DeviceFault(
        f"{what}: the device refused it, no bank holds all of that; ask within "
        f"{config.memory_description}"
    )
