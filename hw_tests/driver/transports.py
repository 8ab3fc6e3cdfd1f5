"""Transports that watch, hold up or spoil another one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.device.transport import Transport, kernel_window
from sw_driver.runtime.wrapper import TransportWrapper

__all__ = ["SpoilingTransport", "WatchedTransport"]

HOLD_SECONDS = 60


class WatchedTransport(TransportWrapper):
    """Counts what changes the device, and can keep a run from being seen to end."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.changes = 0
        """Calls that wrote anything."""
        self.link_lines = 0
        """Lines that went over the link, either way."""
        self._open = threading.Event()
        self._open.set()

    def hold(self) -> None:
        """From now on a kernel's status is not answered."""
        self._open.clear()

    def release(self) -> None:
        """A kernel's status is answered again."""
        self._open.set()

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        self.changes += 1
        self.link_lines += data.nbytes // 64
        super().write_lines(channel, address, data)

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        self.link_lines += nbytes // 64
        return super().read_lines(channel, address, nbytes)

    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        self.changes += 1
        super().backdoor_write(channel, address, data)

    def poll(self, channel: int, address: int, mask: int, value: int, **times: Any) -> int:
        window = kernel_window(self.capacity_bytes)
        if window <= address < window + 4096:
            assert self._open.wait(HOLD_SECONDS), "nobody released the run"
        return super().poll(channel, address, mask, value, **times)


class SpoilingTransport(TransportWrapper):
    """Flips the lowest bit of a byte of one channel whenever a run is polled for its end."""

    def __init__(self, inner: Transport, *, channel: int, address: int) -> None:
        super().__init__(inner)
        self._place = (channel, address)

    def poll(self, channel: int, address: int, mask: int, value: int, **times: Any) -> int:
        result = super().poll(channel, address, mask, value, **times)
        spoilt_channel, spoilt_address = self._place
        window = kernel_window(self.capacity_bytes)
        if channel == spoilt_channel and window <= address < window + 4096:
            byte = self.backdoor_read(channel, spoilt_address, 1)
            self.backdoor_write(channel, spoilt_address, byte ^ np.uint8(1))
        return result
