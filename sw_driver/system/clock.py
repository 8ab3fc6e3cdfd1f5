"""Simulated time: a clock, events that happen once, and processes that wait for them.

Times are integer ns. Entries due at the same moment run in the order in which they were scheduled,
so the same program gives the same result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from ..numbers import check_integer
from .errors import EngineError

__all__ = ["Action", "EngineClock", "EngineEvent", "Entry", "Process", "ProcessSteps", "Semaphore"]


ProcessSteps = Generator["EngineEvent", Any, Any]
"""Generator of a process: it yields the events it waits for, and receives their values."""

Entry = list[Any]
"""Due time in ns, sequence number within that time, and a function (None if cancelled)."""

_FIRST = 1 << 62
"""Subtracted from the sequence number of a process's start, so that it runs first."""


class EngineEvent:
    """An event that happens once, and then calls each of ``callbacks`` with itself.

    ``text`` describes it in error messages.
    """

    __slots__ = ("callbacks", "clock", "happened", "text", "value")

    def __init__(self, clock: EngineClock, text: str = "") -> None:
        self.clock = clock
        self.callbacks: list[Callable[[Any], object]] = []
        self.happened = False
        self.value: Any = None
        """Value that a waiting process receives."""
        self.text = text

    @property
    def description(self) -> str:
        """Words for the event in an error message."""
        return self.text or f"an event ({type(self).__name__}) that nothing triggers"

    def succeed(self, value: Any = None) -> None:
        """Let the event happen now, after all entries that are due now already."""
        self.value = value
        self.clock.at(self.clock.now_ns, self.happen)

    def happen(self) -> None:
        """Happen and call the callbacks; only the clock calls this.

        Raises :class:`EngineError` if the event has happened before.
        """
        if self.happened:
            raise EngineError(f"{self.description} happened before: an event happens only once")
        self.happened = True
        for callback in self.callbacks:
            callback(self)
        self.callbacks.clear()


class Process(EngineEvent):
    """A running generator; it happens when the generator returns, with the returned value."""

    __slots__ = ("_steps", "name", "waits_for")

    def __init__(self, clock: EngineClock, steps: ProcessSteps, name: str) -> None:
        super().__init__(clock)
        self._steps = steps
        self.name = name or getattr(steps, "__name__", "process")
        self.waits_for: EngineEvent = self

    @property
    def description(self) -> str:
        return f"process {self.name!r}"

    def go_on(self, event: EngineEvent) -> None:
        """Resume the generator after the event it waits for has happened."""
        send = self._steps.send
        try:
            while event.happened:
                event = send(event.value)
            self.waits_for = event
            event.callbacks.append(self.go_on)
        except StopIteration as stop:
            self.succeed(stop.value)


class Semaphore:
    """A resource with ``free`` units, granted in the order of requests."""

    def __init__(self, clock: EngineClock, free: int = 1) -> None:
        self._clock = clock
        self._free = check_integer("free", free, 0)
        self._waiting: deque[EngineEvent] = deque()

    def acquire(self) -> EngineEvent:
        """Request a unit; the event happens when it is granted."""
        event = self._clock.event()
        self._waiting.append(event)
        self._serve()
        return event

    def release(self) -> None:
        """Return a unit; the next waiter gets it after the entries that are due now already."""
        self._free += 1
        self._clock.at(self._clock.now_ns, self._serve)

    def _serve(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft().succeed()


class EngineClock:
    """Simulated time, from 0 on, and a heap of scheduled calls.

    Examples
    --------
    >>> clock = EngineClock()
    >>> def steps():
    ...     yield clock.timeout(100)
    ...     print("at", clock.now_ns, "ns")
    >>> process = clock.process(steps())
    >>> clock.run()
    at 100 ns
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self._entries: list[Entry] = []
        self._numbers = count()
        self._at_end: list[Callable[[], object]] = []

    def event(self, text: str = "") -> EngineEvent:
        """Return an event of this clock; ``text`` describes it in error messages."""
        return EngineEvent(self, text)

    def timeout(self, duration_ns: int) -> EngineEvent:
        """Return an event that happens ``duration_ns`` from now.

        Raises :class:`EngineError` if that is negative.
        """
        duration_ns = check_integer("a timeout in ns", duration_ns, 0, error=EngineError)
        event = EngineEvent(self)
        self.at(self.now_ns + duration_ns, event.happen)
        return event

    def process(self, steps: ProcessSteps, name: str = "") -> Process:
        """Start a generator now, before all other entries that are due now."""
        process, begun = Process(self, steps, name), EngineEvent(self)
        begun.callbacks.append(process.go_on)
        heappush(self._entries, [self.now_ns, next(self._numbers) - _FIRST, begun.happen])
        return process

    def at(self, at_ns: int, function: Callable[[], object]) -> Entry:
        """Schedule a call of ``function`` at ``at_ns``; :meth:`cancel` takes the entry.

        Raises :class:`EngineError` for a time in the past.
        """
        if type(at_ns) is not int or at_ns < self.now_ns:
            at_ns = check_integer("at_ns", at_ns, self.now_ns, error=EngineError)
        entry = [at_ns, next(self._numbers), function]
        heappush(self._entries, entry)
        return entry

    def cancel(self, entry: Entry) -> None:
        """Cancel a scheduled call."""
        entry[-1] = None

    def at_end(self, function: Callable[[], object]) -> None:
        """Call ``function`` when nothing else is due now, before time advances."""
        self._at_end.append(function)

    def run(self) -> None:
        """Run all scheduled calls; an exception of a process ends the run."""
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


class Action(EngineEvent):
    """An event that happens when the action ends; it records when it began.

    ``queue`` is the name of its queue, if any. ``ended`` is called first when it ends.
    """

    __slots__ = ("after", "awaited", "begin_ns", "end_ns", "label", "queue")

    begin_ns: int
    end_ns: int
    """Both are set only once the action has begun or ended."""
    awaited: Sequence[EngineEvent]
    """Everything it had to wait for, if the run is recorded."""

    def __init__(
        self,
        clock: EngineClock,
        queue: str,
        label: str,
        after: Iterable[EngineEvent],
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
        """Events it still waits for; the last one is checked first."""

    @property
    def description(self) -> str:
        return f"{self.label!r}" + f" in queue {self.queue!r}" * bool(self.queue)

    def proceed(self, _: EngineEvent | None = None) -> None:
        """Begin, unless an event of ``after`` has not happened yet."""
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
        """Start the action; a subclass schedules its end."""
        raise NotImplementedError
