"""Whole memories of a device, filled and compared."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.transport import Transport, kernel_window

__all__ = ["fill", "settle", "snapshot"]

Bytes = NDArray[np.uint8]


def fill(transport: Transport, rng: np.random.Generator) -> list[Bytes]:
    """Fills all DRAM below the windows with random bytes; returns them, channel by channel."""
    contents = []
    for channel in range(transport.channels):
        data = rng.integers(0, 256, kernel_window(transport.capacity_bytes), dtype=np.uint8)
        transport.backdoor_write(channel, 0, data)
        contents.append(data)
    return contents


def snapshot(transport: Transport) -> list[Bytes]:
    """All DRAM below the windows, channel by channel."""
    size = kernel_window(transport.capacity_bytes)
    return [transport.backdoor_read(channel, 0, size) for channel in range(transport.channels)]


def settle(device: Axdimm, channel: int) -> None:
    """Waits until what the link wrote is in the DRAM: a mode switch drains what is in flight."""
    device.SetArbiterAcc(channel)
    device.SetArbiterNormal(channel)
