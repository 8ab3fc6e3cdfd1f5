"""Who is first in simulated time, though threads of the host come when they like."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .watchdog import LOOK_SECONDS, Watchdog

__all__ = ["TimeOrder"]


class TimeOrder:
    """Lets streams ask for what they share in the order of simulated time.

    Each stream at work has a time before which it asks for nothing; who wants something at a later
    time waits until all have got that far. So what a program with several streams takes does not
    depend on how the host schedules its threads. A stream that waits for another is not at work:
    no two wait for each other here.
    """

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._changed = threading.Condition()
        self._bounds: dict[int, int] = {}
        """Of the streams at work, by their numbers."""
        self._thread = threading.local()

    def adopt(self, stream: int) -> None:
        """The calling thread is that of stream ``stream``."""
        self._thread.stream = stream

    def enter(self, stream: int, fabric_cycle: int) -> None:
        """``stream`` is at work and may ask for something from that time on."""
        with self._changed:
            self._bounds.setdefault(stream, fabric_cycle)

    def leave(self, stream: int) -> None:
        """``stream`` has nothing to do."""
        with self._changed:
            self._bounds.pop(stream, None)
            self._changed.notify_all()

    def reach(self, fabric_cycle: int) -> None:
        """The calling thread asks for nothing before that time."""
        stream = self._own()
        with self._changed:
            if stream in self._bounds and self._bounds[stream] < fabric_cycle:
                self._bounds[stream] = fabric_cycle
                self._changed.notify_all()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """The calling thread waits for another, so that nobody need wait for it."""
        stream = self._own()
        with self._changed:
            bound = self._bounds.pop(stream, None)
            self._changed.notify_all()
        try:
            yield
        finally:
            if bound is not None:
                self.enter(stream, bound)

    def turn(self, fabric_cycle: int, what: str) -> None:
        """Waits until no stream can ask for an earlier time any more.

        Raises :class:`~sw_driver.errors.DeviceTimeoutError` if nothing gets on.
        """
        stream = self._own()
        self.reach(fabric_cycle)
        began = time.monotonic()
        with self._changed:
            while any(
                (bound, other) < (fabric_cycle, stream)
                for other, bound in self._bounds.items()
                if other != stream
            ):
                self._changed.wait(LOOK_SECONDS)
                self._watchdog.check(began, f"the turn of {what}")

    def _own(self) -> int:
        """Number of the calling thread's stream; all others come last among equals."""
        return getattr(self._thread, "stream", 1 << 62)
