"""Who is first in simulated time, though threads of the host come when they like."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .transport import Transport
from .watchdog import Patience, Watchdog

__all__ = ["TimeOrder"]

NO_STREAM = 1 << 62
"""In place of a stream's number, for other threads: among equals they come last."""


@dataclass(eq=False)
class _Work:
    """A stream that has something to do."""

    bound: int
    """It asks for nothing before this time."""
    channel: int | None
    """Which its operation is for, if it is one."""
    waiting: int = 0
    """For what takes its time from others: nobody need wait for it."""


class TimeOrder:
    """Lets streams ask for what they share in the order of simulated time.

    Each stream at work has a time before which it asks for nothing; who wants something at a later
    time waits until all have got that far. So what a program with several streams takes does not
    depend on how the host schedules its threads. A stream that waits for another is not at work:
    no two wait for each other here.
    """

    def __init__(self, transport: Transport, watchdog: Watchdog) -> None:
        self._transport = transport
        self._watchdog = watchdog
        self._changed = threading.Condition()
        self._work: dict[int, _Work] = {}
        """By the number of the stream."""
        self._thread = threading.local()

    def adopt(self, stream: int) -> None:
        """The calling thread is that of stream ``stream``."""
        self._thread.stream = stream

    def enter(self, stream: int, channel: int | None, fabric_cycle: int) -> None:
        """``stream`` has something to do for ``channel``, from that time on, if it had not."""
        with self._changed:
            if stream not in self._work:
                self._work[stream] = _Work(fabric_cycle, channel)
                self._engage(self._work[stream])

    def turn_to(self, stream: int, channel: int | None) -> None:
        """``stream`` is now at work for ``channel``."""
        with self._changed:
            work = self._work.get(stream)
            if work is not None and work.channel != channel:
                self._disengage(work)
                work.channel = channel
                self._engage(work)

    def leave(self, stream: int) -> None:
        """``stream`` has nothing to do."""
        with self._changed:
            work = self._work.pop(stream, None)
            if work is not None:
                self._disengage(work)
            self._changed.notify_all()

    def reach(self, fabric_cycle: int) -> None:
        """The calling thread asks for nothing before that time."""
        with self._changed:
            work = self._work.get(self._own())
            if work is not None and work.bound < fabric_cycle:
                work.bound = fabric_cycle
                self._engage(work)
                self._changed.notify_all()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """The calling thread waits for another, so that nobody need wait for it."""
        with self._changed:
            work = self._work.get(self._own())
            if work is not None:
                work.waiting += 1
                self._disengage(work)
                self._changed.notify_all()
        try:
            yield
        finally:
            if work is not None:
                with self._changed:
                    work.waiting -= 1
                    if work in self._work.values():
                        self._engage(work)

    def turn(self, fabric_cycle: int, what: str) -> None:
        """Waits until no stream can ask for an earlier time any more.

        Raises :class:`~sw_driver.errors.DeviceTimeoutError` if nothing gets on.
        """
        stream = self._own()
        self.reach(fabric_cycle)
        patience = Patience(self._watchdog, f"the turn of {what}")
        with self._changed:
            work = self._work.get(stream)
            if work is not None:
                # Who has the link meanwhile need not wait for what is not asked for yet.
                self._disengage(work)
            while any(
                not other.waiting and (other.bound, number) < (fabric_cycle, stream)
                for number, other in self._work.items()
                if number != stream
            ):
                self._changed.wait(patience.step_s)
                patience.check()
            if work is not None:
                self._engage(work)

    def _engage(self, work: _Work) -> None:
        if work.channel is not None and not work.waiting:
            self._transport.engage(work.channel, work.bound)

    def _disengage(self, work: _Work) -> None:
        """Unless another stream is at work for the same channel."""
        if work.channel is not None and not any(
            other.channel == work.channel and not other.waiting
            for other in self._work.values()
            if other is not work
        ):
            self._transport.disengage(work.channel)

    def _own(self) -> int:
        return getattr(self._thread, "stream", NO_STREAM)
