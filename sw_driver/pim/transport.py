"""The one interface between the driver and a stack with PIMs.

It has registers over AXI4-Lite, memory over the host's port, and time.
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
"""Cycles of a register read or write, measured on RTL."""

TURN = "the PIM"
"""Name of the stack in errors; one operation at a time may use it."""

alone = one_call(TURN)
"""Decorator that makes a transport's method a call of its own."""

QUIET_LIMIT_CYCLES = 200_000
"""Cycles without a change of any counter until a wait times out.

In a sound pool memory causes the longest pauses, of some hundred cycles.
"""


class PimTransport(Transport, Protocol):
    """A stack with its pool; see :class:`~sw_driver.device.transport.Transport`.

    Time passes in every call, but only :class:`~sw_driver.pim.device.Pim` records it. Every call
    ends. It raises :class:`~sw_driver.device.transport.DeviceTimeout` if the device does not
    answer. It raises :class:`~sw_driver.device.transport.DeviceFault` if the device refuses the
    call or breaks its own rules. The device refuses memory that no bank holds;
    :class:`~sw_driver.pim.device.Pim` never asks for such memory.
    """

    config: PimConfig
    """Configuration of the stack."""

    computes: bool
    """True if memory holds data and works compute; a timing-only model does neither."""

    def read_register(self, offset_bytes: int) -> int:
        """Return the 64 bits of the register at ``offset_bytes`` (a multiple of 8)."""
        ...

    def write_register(self, offset_bytes: int, value: int) -> None:
        """Write the 64 bits of the register at ``offset_bytes``."""
        ...

    def read_memory(self, address_bytes: int, nbytes: int) -> NDArray[np.uint8]:
        """Return bytes of the stack; a work's result is visible completely or not at all.

        A read of bytes that a running work writes may last until that work completes.
        """
        ...

    def write_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        """Write bytes of the stack, visible to works that are offered afterwards."""
        ...

    def read_steps(self, address_bytes: int, nbytes: int) -> Steps:
        """Run :meth:`read_memory` step by step."""
        yield from ()
        return self.read_memory(address_bytes, nbytes)

    def write_steps(self, address_bytes: int, data: NDArray[np.uint8]) -> Steps:
        """Run :meth:`write_memory` step by step."""
        yield from ()
        self.write_memory(address_bytes, data)

    def post_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        """Write bytes that banks hold, without waiting for the responses.

        Later memory accesses of this transport and of rings see the bytes; banks may not see them
        yet.
        """
        ...

    def advance(self, cycles: int) -> None:
        """Advance the fabric clock by ``cycles``.

        Stop earlier, after one cycle at least, once an enabled interrupt of a ring is pending. A
        model without a clock completes the oldest running work, if there is one.
        """
        ...

    def cycles(self) -> int:
        """Return the cycles that have passed; 0 on a model without a clock."""
        ...


def no_memory(access: str, config: PimConfig) -> DeviceFault:
    """Return the error of an ``access`` (its description) to bytes that no bank holds."""
    return DeviceFault(
        f"{access}: the device refused it, no bank holds all of that; ask within "
        f"{config.memory_description}"
    )
