"""A transport whose calls for one channel wait for each other, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..device.transport import Transport
from .watchdog import Watchdog
from .wrapper import TransportWrapper

__all__ = ["SerializedTransport"]


class _FairLock:
    """A lock that is given to those who wait in the order in which they came.

    Who follows a run asks again and again; others would hardly ever find an ordinary lock free.
    """

    def __init__(self, watchdog: Watchdog, what: str) -> None:
        self._watchdog = watchdog
        self._what = what
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._held = False

    def __enter__(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self._mutex:
            if not self._held:
                self._held = True
                return
            self._waiting.append(gate)
        try:
            self._watchdog.acquire(gate, self._what)
        except BaseException:  # Ctrl-C, too
            with self._mutex:
                granted = gate not in self._waiting
                if not granted:
                    self._waiting.remove(gate)
            if granted:
                self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False


class SerializedTransport(TransportWrapper):
    """A transport that any thread may call, see :class:`~sw_driver.device.transport.Transport`.

    The driver, who follows a run and a program that calls the transport itself may so call at any
    time, also while the device is closed.
    """

    def __init__(self, inner: Transport, watchdog: Watchdog) -> None:
        super().__init__(inner)
        self._locks = [
            _FairLock(watchdog, f"an access to channel {channel}")
            for channel in range(inner.channels)
        ]

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

    def fabric_cycles(self, channel: int) -> int:
        with self._locks[channel]:
            return super().fabric_cycles(channel)

    def now(self, channel: int) -> int:
        with self._locks[channel]:
            return super().now(channel)

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        with self._locks[channel]:
            return super().link_uses(channel)

    def close(self) -> None:
        with ExitStack() as locks:
            for lock in self._locks:
                locks.enter_context(lock)
            super().close()
