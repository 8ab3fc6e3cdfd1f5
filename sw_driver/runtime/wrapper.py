"""A transport around another one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..device.transport import Transport

__all__ = ["TransportWrapper"]


class TransportWrapper:
    """Passes every call on to the transport inside; see
    :class:`~sw_driver.device.transport.Transport`.

    For those that change some of it: watch, hold up, serialize.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.channels = inner.channels
        self.capacity_bytes = inner.capacity_bytes
        self.timed = inner.timed
        self.fabric_mhz = inner.fabric_mhz
        self.name = inner.name
        self.subnormals = inner.subnormals

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        self.inner.write_lines(channel, address, data)

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        return self.inner.read_lines(channel, address, nbytes)

    def poll(self, channel: int, address: int, mask: int, value: int, **times: Any) -> int:
        return self.inner.poll(channel, address, mask, value, **times)

    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        self.inner.backdoor_write(channel, address, data)

    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        return self.inner.backdoor_read(channel, address, nbytes)

    def fabric_cycles(self, channel: int) -> int:
        return self.inner.fabric_cycles(channel)

    def now(self, channel: int) -> int:
        return self.inner.now(channel)

    def host_time(self) -> int:
        return self.inner.host_time()

    def set_host_time(self, fabric_cycle: int) -> None:
        self.inner.set_host_time(fabric_cycle)

    def engage(self, channel: int, fabric_cycle: int) -> None:
        self.inner.engage(channel, fabric_cycle)

    def disengage(self, channel: int) -> None:
        self.inner.disengage(channel)

    def record_link(self, record: bool) -> None:
        self.inner.record_link(record)

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        return self.inner.link_uses(channel)

    def close(self) -> None:
        self.inner.close()
