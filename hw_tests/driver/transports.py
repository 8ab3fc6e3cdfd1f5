"""Transports that watch, hold up or spoil another one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.axdimm.transport import Transport, finished, kernel_window
from sw_driver.device.clock import Clock

__all__ = ["Bytes", "SpoilingTransport", "TransportWrapper", "WatchedTransport", "of_kernel"]

Bytes = NDArray[np.uint8]


class TransportWrapper(Transport):
    """Passes every call on to the transport inside; all that goes over the link does by its steps,
    for subclasses to change."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.channels = inner.channels
        self.capacity_bytes = inner.capacity_bytes
        self.timed = inner.timed
        self.domain = inner.domain
        self.fabric_mhz = inner.fabric_mhz
        self.name = inner.name
        self.subnormals = inner.subnormals

    def join(self, clock: Clock) -> None:
        self.inner.join(clock)
        self.domain = self.inner.domain

    def write_lines(self, channel: int, address: int, data: Bytes) -> None:
        finished(self.write_steps(channel, address, data))

    def read_lines(self, channel: int, address: int, nbytes: int) -> Bytes:
        return finished(self.read_steps(channel, address, nbytes))

    def poll(self, channel: int, address: int, mask: int, value: int, **times: Any) -> int:
        return finished(self.poll_steps(channel, address, mask, value, **times))

    def write_steps(self, channel: int, address: int, data: Bytes) -> Generator[None, None, None]:
        return self.inner.write_steps(channel, address, data)

    def read_steps(self, channel: int, address: int, nbytes: int) -> Generator[None, None, Bytes]:
        return self.inner.read_steps(channel, address, nbytes)

    def poll_steps(
        self, channel: int, address: int, mask: int, value: int, **times: Any
    ) -> Generator[None, None, int]:
        return self.inner.poll_steps(channel, address, mask, value, **times)

    def backdoor_write(self, channel: int, address: int, data: Bytes) -> None:
        self.inner.backdoor_write(channel, address, data)

    def backdoor_read(self, channel: int, address: int, nbytes: int) -> Bytes:
        return self.inner.backdoor_read(channel, address, nbytes)

    def fabric_cycles(self, channel: int) -> int:
        return self.inner.fabric_cycles(channel)

    def now(self, channel: int) -> int:
        return self.inner.now(channel)

    def record_link(self, record: bool) -> None:
        self.inner.record_link(record)

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        return self.inner.link_uses(channel)

    def close(self) -> None:
        self.inner.close()


class WatchedTransport(TransportWrapper):
    """Counts what changes the device, and can keep a run from being seen to end."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.changes = 0
        """Calls that wrote anything."""
        self.link_lines = 0
        """Lines that went over the link, either way."""
        self.held = False
        """Whether a kernel's status is not answered."""

    def write_steps(self, channel: int, address: int, data: Bytes) -> Generator[None, None, None]:
        self.changes += 1
        self.link_lines += data.nbytes // 64
        return super().write_steps(channel, address, data)

    def read_steps(self, channel: int, address: int, nbytes: int) -> Generator[None, None, Bytes]:
        self.link_lines += nbytes // 64
        return super().read_steps(channel, address, nbytes)

    def backdoor_write(self, channel: int, address: int, data: Bytes) -> None:
        self.changes += 1
        super().backdoor_write(channel, address, data)

    def poll_steps(
        self, channel: int, address: int, mask: int, value: int, **times: Any
    ) -> Generator[None, None, int]:
        if of_kernel(self, address):
            while self.held:
                # Also on a backend without a time, so that others have their turn.
                self.domain.now += 1000
                yield
        return (yield from super().poll_steps(channel, address, mask, value, **times))


class SpoilingTransport(TransportWrapper):
    """Flips the lowest bit of a byte of one channel whenever a run is polled for its end."""

    def __init__(self, inner: Transport, *, channel: int, address: int) -> None:
        super().__init__(inner)
        self._place = (channel, address)

    def poll_steps(
        self, channel: int, address: int, mask: int, value: int, **times: Any
    ) -> Generator[None, None, int]:
        result = yield from super().poll_steps(channel, address, mask, value, **times)
        spoilt_channel, spoilt_address = self._place
        if channel == spoilt_channel and of_kernel(self, address):
            byte = self.backdoor_read(channel, spoilt_address, 1)
            self.backdoor_write(channel, spoilt_address, byte ^ np.uint8(1))
        return result


def of_kernel(transport: Transport, address: int) -> bool:
    """Whether the address is one of the kernel's registers."""
    window = kernel_window(transport.capacity_bytes)
    return window <= address < window + 4096
