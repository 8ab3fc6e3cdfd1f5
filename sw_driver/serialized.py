"""A transport whose calls for one channel wait for each other, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .transport import Transport
from .wrapper import TransportWrapper

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


class SerializedTransport(TransportWrapper):
    """See :class:`~sw_driver.transport.Transport`.

    The driver, who follows a run and who looks in from outside may so call at any time.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._locks = [_FairLock() for _ in range(inner.channels)]

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        with self._locks[channel]:
            super().write_lines(channel, address, data)

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        with self._locks[channel]:
            return super().read_lines(channel, address, nbytes)

    def poll(self, channel: int, address: int, mask: int, value: int, **times: Any) -> int:
        with self._locks[channel]:
            return super().poll(channel, address, mask, value, **times)

    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        with self._locks[channel]:
            super().backdoor_write(channel, address, data)

    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        with self._locks[channel]:
            return super().backdoor_read(channel, address, nbytes)

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        with self._locks[channel]:
            return super().link_uses(channel)
