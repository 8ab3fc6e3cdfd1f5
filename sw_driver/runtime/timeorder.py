"""Who is first in simulated time, though threads of the host come when they like."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..device.transport import Transport
from .watchdog import Patience, Watchdog

__all__ = ["TimeOrder"]

NO_STREAM = 1 << 62
"""Stands in for a stream's number for other threads: among equals they come last."""


@dataclass(eq=False)
class _Work:
    """A stream that has something to do."""

    bound: int
    """Simulated time, in fabric cycles, before which the stream asks for nothing."""
    channel: int | None
    """The channel that the stream's operation is for, if it is for one."""
    waits: bool = False
    """Whether the stream waits for another, from which it takes its time: nobody need wait for
    it."""
    waits_for: object = None
    """What the stream waits for, if that is known."""
    turn_at: int | None = None
    """Simulated time, in fabric cycles, for which the stream waits for its turn."""

    @property
    def engages(self) -> int | None:
        """The channel that the stream may use any time now, if there is one."""
        return None if self.waits or self.turn_at is not None else self.channel


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
        """Streams that have something to do, by their numbers."""
        self._thread = threading.local()

    def adopt(self, stream: int) -> None:
        """The calling thread is that of stream ``stream``."""
        self._thread.stream = stream

    @property
    def is_stream(self) -> bool:
        """Whether the calling thread is a stream's."""
        return self._own() != NO_STREAM

    def enter(self, stream: int, channel: int | None, fabric_cycle: int) -> None:
        """``stream`` has something to do for ``channel``, from that time on, if it had not."""
        with self._changed:
            if stream not in self._work:
                self._work[stream] = _Work(fabric_cycle, channel)
                self._update(channel)

    def turn_to(self, stream: int, channel: int | None) -> None:
        """``stream`` is now at work for ``channel``."""
        with self._changed:
            work = self._work.get(stream)
            if work is not None and work.channel != channel:
                before, work.channel = work.channel, channel
                self._update(before)
                self._update(channel)

    def leave(self, stream: int) -> None:
        """``stream`` has nothing to do."""
        with self._changed:
            work = self._work.pop(stream, None)
            if work is not None:
                self._update(work.channel)

    def reach(self, fabric_cycle: int) -> None:
        """The calling thread asks for nothing before that time."""
        with self._changed:
            work = self._work.get(self._own())
            if work is not None and work.bound < fabric_cycle:
                work.bound = fabric_cycle
                self._update(work.channel)

    @contextmanager
    def blocked(self, on: object = None) -> Iterator[None]:
        """The calling thread waits for another, so that nobody need wait for it.

        If it waits for the end of ``on``, that is to be told by :meth:`over`.
        """
        with self._changed:
            work = self._work.get(self._own())
            if work is not None:
                work.waits, work.waits_for = True, on
                self._update(work.channel)
        try:
            yield
        finally:
            if work is not None:
                with self._changed:
                    work.waits, work.waits_for = False, None
                    self._update(work.channel)

    def over(self, what: object, fabric_cycle: int) -> None:
        """``what`` ends at that time: who waits for it goes on."""
        with self._changed:
            for work in self._work.values():
                if work.waits and work.waits_for is what:
                    work.waits, work.waits_for = False, None
                    work.bound = max(work.bound, fabric_cycle)
                    self._update(work.channel)

    def turn(self, fabric_cycle: int, what: str) -> None:
        """Waits until no stream can ask for an earlier time any more.

        Raises :class:`~sw_driver.device.errors.DeviceTimeoutError` if nothing gets on.
        """
        stream = self._own()
        self.reach(fabric_cycle)
        patience = Patience(self._watchdog, f"the turn of {what}")
        with self._changed:
            work = self._work.get(stream)
            if work is not None:
                # Who has the link meanwhile need not wait for what is not asked for yet.
                work.turn_at = fabric_cycle
                self._update(work.channel)
            try:
                while (
                    work.turn_at is not None if work else not self._is_first(stream, fabric_cycle)
                ):
                    self._changed.wait(patience.step_s)
                    patience.check()
            finally:
                if work is not None:
                    work.turn_at = None
                    self._update(work.channel)

    def _is_first(self, stream: int, fabric_cycle: int) -> bool:
        """Whether no other stream can ask for an earlier time, or for the same before this one."""
        return not any(
            not other.waits and (other.bound, number) < (fabric_cycle, stream)
            for number, other in self._work.items()
            if number != stream
        )

    def _update(self, channel: int | None) -> None:
        """Draws the consequences of a change that concerns ``channel``. For the owner of the lock.

        Those whose turn has come are at work from now on, whenever their threads wake up; the link
        waits for the channels of those at work.
        """
        concerned = [channel]
        for number, work in self._work.items():
            if work.turn_at is not None and self._is_first(number, work.turn_at):
                work.turn_at = None
                concerned.append(work.channel)
        for each in {each for each in concerned if each is not None}:
            bounds = [work.bound for work in self._work.values() if work.engages == each]
            if bounds:
                self._transport.engage(each, min(bounds))
            else:
                self._transport.disengage(each)
        self._changed.notify_all()

    def _own(self) -> int:
        return getattr(self._thread, "stream", NO_STREAM)
