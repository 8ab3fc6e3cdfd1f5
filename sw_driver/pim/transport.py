"""What the driver needs of a stack with PIMs: the one interface between them.

Registers over AXI4-Lite, memory over the host's port, and time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from sw_driver.device.clock import Steps
from sw_driver.device.streams import one_call
from sw_driver.device.transport import DeviceFault, Transport

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["ACCESS_CYCLES", "QUIET_LIMIT_CYCLES", "TURN", "PimTransport", "alone", "no_memory"]

ACCESS_CYCLES = 3
"""Cycles of a read or a write of a register, measured on RTL."""

TURN = "the PIM"
"""Name of what one operation at a time has: the stack."""

alone = one_call(TURN)
"""Makes a transport's method a call of its own."""

QUIET_LIMIT_CYCLES = 200_000
"""Cycles without a change of any counter after which a wait is given up. In a sound pool the
longest pauses are those of memory, some hundreds of cycles."""


class PimTransport(Transport, Protocol):
    """A stack with its pool. See :class:`~sw_driver.device.transport.Transport`; time passes in
    every call, but only :class:`~sw_driver.pim.device.Pim` takes note of it.

    Every call returns: one that the device does not answer raises
    :class:`~sw_driver.device.transport.DeviceTimeout`, and one that it refuses, or in which it
    breaks its own rules, :class:`~sw_driver.device.transport.DeviceFault`. It refuses memory that
    no bank holds, for which :class:`~sw_driver.pim.device.Pim` does not ask it.
    """

    config: PimConfig
    """What the stack was made for."""

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

    def read_steps(self, address_bytes: int, nbytes: int) -> Steps:
        """The steps of :meth:`read_memory`."""
        yield from ()
        return self.read_memory(address_bytes, nbytes)

    def write_steps(self, address_bytes: int, data: NDArray[np.uint8]) -> Steps:
        """The steps of :meth:`write_memory`."""
        yield from ()
        self.write_memory(address_bytes, data)

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


def no_memory(what: str, config: PimConfig) -> DeviceFault:
    """The error of an access, called ``what``, of which no bank holds some or all bytes."""
    return DeviceFault(
        f"{what}: the device refused it, no bank holds all of that; ask within "
        f"{config.memory_description}"
    )
