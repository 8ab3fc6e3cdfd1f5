"""A transport whose calls for one channel wait for each other, first come, first served."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

from .transport import Transport

__all__ = ["SerializedTransport"]


class _FairLock:
    """A lock that is given to those who wait in the order in which they came.

    Who follows a run asks again and again; others would hardly ever find an ordinary lock free.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._held = False

    def __enter__(self) -> None:
        with self._mutex:
            if not self._held:
                self._held = True
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False


class SerializedTransport:
    """Passes everything on; see :class:`~sw_driver.transport.Transport`.

    The driver, who follows a run and who looks in from outside may so call at any time.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.channels = inner.channels
        self.capacity_bytes = inner.capacity_bytes
        self.timed = inner.timed
        self.fabric_mhz = inner.fabric_mhz
        self.name = inner.name
        self._locks = [_FairLock() for _ in range(inner.channels)]

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        with self._locks[channel]:
            self.inner.write_lines(channel, address, data)

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        with self._locks[channel]:
            return self.inner.read_lines(channel, address, nbytes)

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
        with self._locks[channel]:
            return self.inner.poll(
                channel,
                address,
                mask,
                value,
                interval_fabric_cycles=interval_fabric_cycles,
                timeout_fabric_cycles=timeout_fabric_cycles,
            )

    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        with self._locks[channel]:
            self.inner.backdoor_write(channel, address, data)

    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        with self._locks[channel]:
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
        with self._locks[channel]:
            return self.inner.link_uses(channel)

    def close(self) -> None:
        self.inner.close()
