"""Simulated time: a clock, events that happen once, and processes that wait for them.

Times are integer ns. What is due at one moment happens in the order in which it was asked for, so
the same program gives the same result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from ..numbers import check_integer
from .errors import EngineError

__all__ = ["Action", "Clock", "Entry", "Event", "Process", "Semaphore", "Steps"]


Steps = Generator["Event", Any, Any]
"""What a process does: yields the events that it waits for, and gets their values."""

Entry = list[Any]
"""When, a number that orders entries of one moment, and a function, or None if cancelled."""

_FIRST = 1 << 62
"""What begins at a moment comes before what else is due then, by so much of its number."""


class Event:
    """Happens once, and calls ``callbacks`` with itself then. ``said`` is what it is, in words."""

    __slots__ = ("callbacks", "clock", "happened", "said", "value")

    def __init__(self, clock: Clock, said: str = "") -> None:
        self.clock = clock
        self.callbacks: list[Callable[[Any], object]] = []
        self.happened = False
        self.value: Any = None
        """What a process gets that waits for it."""
        self.said = said

    @property
    def what(self) -> str:
        """What somebody waits for who waits for it, in words."""
        return self.said or f"an event ({type(self).__name__}) that nobody lets happen"

    def succeed(self, value: Any = None) -> None:
        """Lets it happen now, after what is due now already."""
        self.value = value
        self.clock.at(self.clock.now_ns, self.happen)

    def happen(self) -> None:
        """For the clock. Raises :class:`EngineError` if it has happened."""
        if self.happened:
            raise EngineError(f"{self.what} happened before: an event does so once")
        self.happened = True
        for callback in self.callbacks:
            callback(self)
        self.callbacks.clear()


class Process(Event):
    """A generator at work; happens when it returns, and has the value that it returned."""

    __slots__ = ("_steps", "name", "waits_for")

    def __init__(self, clock: Clock, steps: Steps, name: str) -> None:
        super().__init__(clock)
        self._steps = steps
        self.name = name or getattr(steps, "__name__", "process")
        self.waits_for: Event = self

    @property
    def what(self) -> str:
        return f"process {self.name!r}"

    def go_on(self, event: Event) -> None:
        """Called when what it waits for has happened."""
        send = self._steps.send
        try:
            while event.happened:
                event = send(event.value)
            self.waits_for = event
            event.callbacks.append(self.go_on)
        except StopIteration as stop:
            self.succeed(stop.value)


class Semaphore:
    """So many may have something at a time; who asks first, has it first."""

    def __init__(self, clock: Clock, free: int = 1) -> None:
        self._clock = clock
        self._free = check_integer("free", free, 0)
        self._waiting: deque[Event] = deque()

    def acquire(self) -> Event:
        """Happens when whoever asked has it."""
        event = self._clock.event()
        self._waiting.append(event)
        self._serve()
        return event

    def release(self) -> None:
        """Gives it back, for who waits to have it after what is due now already."""
        self._free += 1
        self._clock.at(self._clock.now_ns, self._serve)

    def _serve(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().succeed()


class Clock:
    """Simulated time, from 0 on, and what is to happen in it."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._entries: list[Entry] = []
        self._numbers = count()
        self._at_end: list[Callable[[], object]] = []

    def event(self, said: str = "") -> Event:
        return Event(self, said)

    def timeout(self, duration_ns: int) -> Event:
        """An event that happens so much later. Raises :class:`EngineError` if that is before."""
        duration_ns = check_integer("a timeout in ns", duration_ns, 0, error=EngineError)
        event = Event(self)
        self.at(self.now_ns + duration_ns, event.happen)
        return event

    def process(self, steps: Steps, name: str = "") -> Process:
        """Lets a generator begin now, before what else is due now."""
        process, begun = Process(self, steps, name), Event(self)
        begun.callbacks.append(process.go_on)
        heappush(self._entries, [self.now_ns, next(self._numbers) - _FIRST, begun.happen])
        return process

    def at(self, at_ns: int, function: Callable[[], object]) -> Entry:
        """Has the function called at that time, unless the entry is cancelled before. Raises
        :class:`EngineError` for a time that is over."""
        if type(at_ns) is not int or at_ns < self.now_ns:
            at_ns = check_integer("at_ns", at_ns, self.now_ns, error=EngineError)
        entry = [at_ns, next(self._numbers), function]
        heappush(self._entries, entry)
        return entry

    def cancel(self, entry: Entry) -> None:
        """Has an entry's time pass as if it was not there."""
        entry[-1] = None

    def at_end(self, function: Callable[[], object]) -> None:
        """Has the function called when nothing else is due now, before the time goes on."""
        self._at_end.append(function)

    def run(self) -> None:
        """Lets everything happen that is to. What a process raises, ends that."""
        entries = self._entries
        while True:
            if self._at_end and (not entries or entries[0][0] > self.now_ns):
                functions, self._at_end = self._at_end, []
                for function in functions:
                    function()
            if not entries:
                return
            at_ns, _, function = heappop(entries)
            if function is not None:
                self.now_ns = at_ns
                function()


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
