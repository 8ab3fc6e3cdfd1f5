"""Waiting that always ends: when what is awaited comes, or when nothing happens any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from .errors import DeviceTimeoutError

__all__ = ["Watchdog"]

LOOK_SECONDS = 0.5


class _Lock(Protocol):
    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...


class Watchdog:
    """Knows when the device last got on, and ends every wait in which it does not.

    Parameters
    ----------
    limit_s: host time without any progress after which a wait is given up.
    describe: tells the device's state, for the message.
    """

    def __init__(self, limit_s: float, describe: Callable[[], str]) -> None:
        self._limit_s = limit_s
        self._describe = describe
        self._last = time.monotonic()

    def beat(self) -> None:
        """Something got on: a chunk of a copy, a poll of a run, the end of an operation."""
        self._last = time.monotonic()

    def check(self, since: float, what: str) -> None:
        """Raises :class:`DeviceTimeoutError` if nothing got on for too long.

        ``since``: when the wait began, as of :func:`time.monotonic`. ``what``: what is awaited.
        """
        idle_s = time.monotonic() - max(since, self._last)
        if idle_s < self._limit_s:
            return
        state = self._describe()
        raise DeviceTimeoutError(
            f"waiting for {what}: nothing got on for {idle_s:.1f} s, more than the limit of "
            f"{self._limit_s:g} s; {state}",
            limit_s=self._limit_s,
            state=state,
        )

    def wait(self, event: threading.Event, what: str, timeout_s: float | None = None) -> bool:
        """Waits for ``event``; False if it did not come within ``timeout_s``.

        Raises :class:`DeviceTimeoutError` if nothing gets on, however long the timeout.
        """
        return self.until(event.wait, what, timeout_s)

    def acquire(self, lock: _Lock, what: str) -> None:
        """Acquires ``lock``. Raises :class:`DeviceTimeoutError` if nothing gets on."""
        self.until(lambda seconds: lock.acquire(timeout=seconds), what)

    def until(
        self, attempt: Callable[[float], bool], what: str, timeout_s: float | None = None
    ) -> bool:
        began = time.monotonic()
        while True:
            step = LOOK_SECONDS
            if timeout_s is not None:
                step = min(step, max(0.0, began + timeout_s - time.monotonic()))
            if attempt(step):
                return True
            if timeout_s is not None and time.monotonic() >= began + timeout_s:
                return False
            self.check(began, what)
