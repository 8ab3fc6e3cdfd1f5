"""What takes time on a machine, as an event that happens when it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .clock import Clock, Event

__all__ = ["Action"]


class Action(Event):
    """An event that happens when the action ends; it knows when it began.

    ``queue`` is the name of the queue that it is an entry of, if any, and ``ended`` is called
    first when it ends.
    """

    __slots__ = ("after", "awaited", "begin_ns", "end_ns", "label", "queue")

    begin_ns: int
    end_ns: int
    """Neither is there before its time."""
    awaited: Sequence[Event]
    """All that it had to wait for, if that is written down."""

    def __init__(
        self,
        clock: Clock,
        queue: str,
        label: str,
        after: Iterable[Event],
        ended: Callable[[Any], object],
    ) -> None:
        self.clock = clock
        self.callbacks = [ended]
        self.happened = False
        self.value = None
        self.label = label
        self.queue = queue
        self.awaited = ()
        self.after = list(after)
        """What it still waits for; the last is looked at first."""

    @property
    def what(self) -> str:
        return f"{self.label!r}" + f" in queue {self.queue!r}" * bool(self.queue)

    def proceed(self, _: Event | None = None) -> None:
        """Begins, unless there is something left to wait for."""
        after = self.after
        while after:
            event = after[-1]
            if not event.happened:
                event.callbacks.append(self.proceed)
                return
            after.pop()
        self.begin_ns = now_ns = self.clock.now_ns
        self.begin(now_ns)

    def begin(self, now_ns: int) -> None:
        """Sees to it that the action ends some time."""
        raise NotImplementedError
