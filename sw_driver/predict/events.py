"""Processes in simulated time, which wait for a cycle or for each other."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from typing import Any, TypeVar

__all__ = ["Alarm", "Condition", "CycleClock", "Process", "Routine"]

_Result = TypeVar("_Result")
Routine = Generator["int | Condition", None, _Result]
"""Generator that is a part of a process, with its result."""
Process = Routine[None]
"""Generator that yields the cycle to sleep until, or a condition to wait for."""

_LATE = 1 << 60


class Condition:
    """State that changes, and the processes that wait for a change."""

    def __init__(self, clock: CycleClock) -> None:
        self._clock = clock
        self._waiting: list[Process] = []

    def wait(self, process: Process) -> None:
        """Wake ``process`` at the next :meth:`notify`."""
        self._waiting.append(process)

    def notify(self, _: object = None) -> None:
        """Wake the waiting processes in this cycle; each must check again if it may go on."""
        clock = self._clock
        waiting, self._waiting = self._waiting, []
        for process in waiting:
            clock.at(clock.now, clock.wake, process)


class Alarm:
    """Timer that calls a function in the earliest cycle set since the last call."""

    def __init__(self, clock: CycleClock, function: Callable[[], None]) -> None:
        self._clock, self._function = clock, function
        self._cycle = -1

    def set(self, cycle: int) -> None:
        """Call the function in ``cycle``, or now if that is past, unless an earlier call is set."""
        if self._cycle < 0 or cycle < self._cycle:
            self._cycle = cycle
            self._clock.at(cycle, self._ring, cycle)

    def _ring(self, cycle: int) -> None:
        if cycle == self._cycle:
            self._cycle = -1
            self._function()


class CycleClock:
    """Clock that calls functions in the order of their cycles, and of requests in one cycle."""

    def __init__(self) -> None:
        self.now = 0
        """Present cycle."""
        self._number = 0
        self._events: list[tuple[int, int, Callable[[Any], None], Any]] = []

    def at(self, cycle: int, function: Callable[[Any], None], argument: Any = None) -> None:
        """Call ``function`` with ``argument`` in ``cycle``, or now if that is past."""
        self._number += 1
        heapq.heappush(self._events, (max(cycle, self.now), self._number, function, argument))

    def late(self, cycle: int, function: Callable[[Any], None]) -> None:
        """Call ``function`` in ``cycle``, after all calls of :meth:`at` in that cycle."""
        self._number += 1
        number = self._number + _LATE
        heapq.heappush(self._events, (max(cycle, self.now), number, function, None))

    def start(self, process: Process, cycle: int) -> None:
        """Run ``process`` from ``cycle`` on."""
        self.at(cycle, self.wake, process)

    def wake(self, process: Process) -> None:
        """Run ``process`` until it yields again."""
        wish = next(process, None)
        if isinstance(wish, Condition):
            wish.wait(process)
        elif wish is not None:
            self.at(wish, self.wake, process)

    @property
    def next_cycle(self) -> int:
        """Cycle of the next event; far off if there is none."""
        return self._events[0][0] if self._events else _LATE

    def step(self) -> None:
        """Execute the next event."""
        self.now, _, function, argument = heapq.heappop(self._events)
        function(argument)

    def run(self) -> None:
        """Execute events until there are none."""
        while self._events:
            self.step()
