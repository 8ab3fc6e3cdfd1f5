"""A transport whose calls for one channel wait for each other, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ..transport import Transport
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
    """See :class:`~sw_driver.transport.Transport`.

    The driver, who follows a run and who looks in from outside may so call at any time, also while
    the device is closed.
    """

    def __init__(self, inner: Transport, watchdog: Watchdog) -> None:
        super().__init__(inner)
        self._locks = [
            _FairLock(watchdog, f"an access to channel {channel}")
            for channel in range(inner.channels)
        ]

    def close(self) -> None:
        with ExitStack() as locks:
            for lock in self._locks:
                locks.enter_context(lock)
            super().close()


def _one_at_a_time(name: str) -> Callable[..., Any]:
    passing_on = getattr(TransportWrapper, name)

    def method(self: SerializedTransport, channel: int, *arguments: Any, **named: Any) -> Any:
        with self._locks[channel]:
            return passing_on(self, channel, *arguments, **named)

    return method


for _name in (
    *("write_lines", "read_lines", "poll", "backdoor_write", "backdoor_read"),
    *("fabric_cycles", "now", "link_uses"),
):
    setattr(SerializedTransport, _name, _one_at_a_time(_name))
