"""Streams and events of a device-node: copies in their order, carried out while time passes.

Nothing here runs by itself: time passes, and copies move, in ``wait`` and ``synchronize`` of any
stream, event or device of the network, so that the same calls give the same cycles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..device.errors import DeviceTimeoutError, InvalidArgumentError, RemoteMemoryError
from .network import NodeNetwork, Piece

__all__ = ["Event", "Stream", "Work"]

_STEP_CYCLES = 256
_QUIET_LIMIT_CYCLES = 10_000_000
"""Fabric cycles without the end of a copy after which a wait is given up: longer than any copy
takes, retries of links included."""


@dataclass(eq=False)
class _Copy:
    device: int
    pieces: list[Piece]
    over: Callable[[], None] | None
    tickets: set[int] | None = None
    """Tickets of the copy's pieces under way; None before the beginning."""


@dataclass(eq=False)
class Event:
    """A place in a stream (``cudaEvent_t``). Made by :meth:`Stream.record`."""

    work: Work
    cycles: int | None = None
    """Fabric cycles at which all before the event had ended; None until then."""

    @property
    def happened(self) -> bool:
        """Whether all before the event has ended. Lets no time pass."""
        self.work.carry_on()
        return self.cycles is not None

    def synchronize(self) -> None:
        """Lets time pass until the event has happened."""
        self.work.until(lambda: self.cycles is not None)


@dataclass(eq=False)
class Stream:
    """Copies one after the other; those of different streams go on at once.

    A copy that a memory-node refused is taken out of its stream, and whoever lets it be carried on
    gets the :class:`~sw_driver.device.errors.RemoteMemoryError`.
    """

    work: Work
    device: int
    _queue: deque[_Copy | Event | tuple[Event]] = field(default_factory=deque)

    def record(self) -> Event:
        """An event that happens when all that is queued now has ended."""
        event = Event(self.work)
        self._queue.append(event)
        return event

    def wait_event(self, event: Event) -> None:
        """What is queued from now on begins after ``event``, of any stream of the network."""
        if not isinstance(event, Event) or event.work is not self.work:
            raise InvalidArgumentError(
                f"{event!r} is no event of this network: expected what record() returned"
            )
        self._queue.append((event,))

    def synchronize(self) -> None:
        """Lets time pass until all that is queued has ended."""
        self.work.until(lambda: not self._queue)

    @property
    def idle(self) -> bool:
        """Whether all that was queued has ended. Lets no time pass."""
        self.work.carry_on()
        return not self._queue

    # For the device and the network's work.

    def copy(self, pieces: list[Piece], over: Callable[[], None] | None = None) -> None:
        """Queues a copy; ``over`` is called when it has ended."""
        self._queue.append(_Copy(self.device, pieces, over))

    def carry_on(self) -> bool:
        """Begins and ends what can be of the stream; returns whether there was something."""
        moved = False
        while self._queue:
            first = self._queue[0]
            if isinstance(first, Event):
                first.cycles = self.work.network.cycles()
            elif isinstance(first, tuple):
                if first[0].cycles is None:
                    break
            else:
                try:
                    if not self._carried_out(first):
                        break
                except RemoteMemoryError:
                    self._queue.popleft()
                    raise
            self._queue.popleft()
            moved = True
        return moved

    def _carried_out(self, copy: _Copy) -> bool:
        network = self.work.network
        if copy.tickets is None:
            copy.tickets = {network.start(copy.device, piece) for piece in copy.pieces}
        copy.tickets = {ticket for ticket in copy.tickets if not network.finished(ticket)}
        if copy.tickets:
            return False
        if copy.over:
            copy.over()
        return True


class Work:
    """All streams of a network."""

    def __init__(self, network: NodeNetwork) -> None:
        self.network = network
        self._streams: list[Stream] = []

    def stream(self, device: int) -> Stream:
        """A new stream of a device."""
        stream = Stream(self, device)
        self._streams.append(stream)
        return stream

    def carry_on(self) -> bool:
        """Begins and ends what can be without time passing; whether there was something."""
        any_moved = False
        while any(stream.carry_on() for stream in self._streams):
            any_moved = True
        return any_moved

    def until(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until ``condition``.

        Raises :class:`~sw_driver.device.errors.DeviceTimeoutError` if nothing moves any more.
        """
        moved_at = self.network.cycles()
        while True:
            if self.carry_on():
                moved_at = self.network.cycles()
            if condition():
                return
            quiet = self.network.cycles() - moved_at
            if not self.network.timed or quiet > _QUIET_LIMIT_CYCLES:
                raise DeviceTimeoutError(
                    f"no copy ended in {quiet} fabric cycles: a stream waits for an event that "
                    "cannot happen, or all links to a memory-node are dead",
                    cycles=quiet,
                )
            self.network.advance(_STEP_CYCLES)
