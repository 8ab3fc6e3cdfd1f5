"""Waiting that always ends: when what is awaited comes, or when nothing happens any more."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..device.errors import ClosedError, DeviceTimeoutError

__all__ = ["LOOK_SECONDS", "Patience", "Watchdog"]

LOOK_SECONDS = 0.5


class _Lock(Protocol):
    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...


class Watchdog:
    """Knows whether the device gets on, and ends every wait in which it does not.

    Parameters
    ----------
    limit_s: host time without any progress after which a wait is given up.
    describe: tells the device's state, for the message.
    on_wait: is called when somebody begins to wait.
    """

    def __init__(
        self, limit_s: float, describe: Callable[[], str], on_wait: Callable[[], None]
    ) -> None:
        self.limit_s = limit_s
        self.describe = describe
        self.on_wait = on_wait
        self.beats = 0
        self._pid = os.getpid()

    def beat(self) -> None:
        """Something got on: a chunk of a copy, a poll of a run, the end of an operation."""
        self.beats += 1

    def check_process(self) -> None:
        """Raises :class:`ClosedError` in a fork, in which nobody does what could be awaited."""
        if os.getpid() != self._pid:
            raise ClosedError(
                f"the device was opened by process {self._pid}, of which this one, {os.getpid()}, "
                "is a fork: open it after the fork",
                pid=self._pid,
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
        """Calls ``attempt`` with how many seconds it may wait, until it is true."""
        patience = Patience(self, what)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            step = patience.step_s
            if deadline is not None:
                step = min(step, max(0.0, deadline - time.monotonic()))
            if attempt(step):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            patience.check()


class Patience:
    """One wait, in steps of ``step_s`` seconds, that ends when nothing gets on for too long."""

    def __init__(self, watchdog: Watchdog, what: str) -> None:
        watchdog.check_process()
        watchdog.on_wait()
        self._watchdog = watchdog
        self._what = what
        self._beats = watchdog.beats
        self._looked = time.monotonic()
        self._idle_s = 0.0
        self.step_s = min(LOOK_SECONDS, watchdog.limit_s)

    def check(self) -> None:
        """Raises :class:`DeviceTimeoutError` if nothing got on for too long."""
        now = time.monotonic()
        # A program that was stopped for a while has not waited that long.
        passed = min(now - self._looked, 2 * self.step_s)
        self._looked = now
        if self._watchdog.beats != self._beats:
            self._beats = self._watchdog.beats
            self._idle_s = 0.0
            return
        self._idle_s += passed
        if self._idle_s < self._watchdog.limit_s:
            return
        state = self._watchdog.describe()
        raise DeviceTimeoutError(
            f"waiting for {self._what}: nothing got on for {self._idle_s:.1f} s, the limit is "
            f"{self._watchdog.limit_s:g} s; {state}",
            limit_s=self._watchdog.limit_s,
            state=state,
        )
