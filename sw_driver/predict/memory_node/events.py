"""Processes that wait for a cycle, or for each other."""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import TypeAlias

__all__ = ["Clock", "Gate", "Process"]


class Clock:
    """Fabric cycles; what happens in the same one happens in the order in which it was called."""

    def __init__(self) -> None:
        self.now = 0
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def call(self, cycle: int, function: Callable[[], None]) -> None:
        """Calls it in a cycle, in this one if that is over."""
        self._count += 1
        heappush(self._calls, (max(cycle, self.now), self._count, function))

    def start(self, process: Process) -> None:
        """Runs a process, which yields a cycle, a gate, or both if whichever is first matters."""
        _Running(self, process)

    def run(self) -> None:
        """Until nothing happens any more."""
        while self._calls:
            self.now, _, function = heappop(self._calls)
            function()


class Gate:
    """What processes wait at until one opens it; they look again whether they may go on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[Callable[[], None]] = []

    def open(self) -> None:
        """Lets those that wait go on in this cycle."""
        for function in self._waiting:
            self._clock.call(self._clock.now, function)
        self._waiting.clear()

    def wait(self, function: Callable[[], None]) -> None:
        """Calls it when the gate opens."""
        self._waiting.append(function)


Process: TypeAlias = Generator[int | Gate | tuple[Gate, int], None, None]


class _Running:
    def __init__(self, clock: Clock, process: Process) -> None:
        self._clock, self._process = clock, process
        self._turn = 0
        self._wait_for(clock.now)

    def _wait_for(self, *events: int | Gate) -> None:
        self._turn += 1
        turn = self._turn

        def go_on() -> None:
            if turn != self._turn:
                return
            event = next(self._process, None)
            if event is not None:
                self._wait_for(*(event if isinstance(event, tuple) else (event,)))

        for event in events:
            if isinstance(event, Gate):
                event.wait(go_on)
            else:
                self._clock.call(event, go_on)
