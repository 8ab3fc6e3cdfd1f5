"""DRAM controller of a channel, which serves bursts in the order of their admission."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from . import DramConfig
from .channel import ChannelState, DramChannel
from .refresh import LONG_AGO, NEVER, RefreshClock
from .rows import Tally

__all__ = ["LOW_LEVEL", "Controller", "Mark", "Piece"]

LOW_LEVEL = 2
"""Queued bursts, at most, with which the direction may change if none of the same is left."""

# Pipeline latencies, calibrated against RTL, in fabric cycles.
PUSH_TO_QUEUED = 1
PREPARED_TO_COLUMN = 1


class Piece(NamedTuple):
    """Run of columns without a gap."""

    first_cycle: int
    lines: int


class Mark(NamedTuple):
    """Counts before a cycle."""

    cycle: int
    tally: Tally


@dataclass
class _Request:
    """Burst in the queue, with its remaining lines."""

    write: bool
    banks: list[int]
    """Two banks in different bank groups, or one bank for a single line."""
    row: int
    pushed: int
    left: int
    side: int = 0
    """Index in ``banks`` of the next line's bank."""
    columns: list[Piece] = field(default_factory=list)


class Controller(DramChannel):
    """Controller that serves one burst after the other and accounts for every cycle.

    Fabric cycles count from ``begin`` on. The lines of a burst alternate between two bank groups,
    one line a cycle. A gap is possible only between the first and the second line, and at a
    refresh.

    Bursts are served at their admission, into the future, up to the next decision to refresh
    (``stopped``). The time after the decision depends on all admissions before it. So the caller
    admits these bursts first, and then calls :meth:`resume`.

    ``ends`` has the cycle of each served burst's last column. ``served`` has the columns of bursts
    that the caller has not taken yet. ``batches`` has a mark after each forced batch of refreshes.
    """

    def __init__(self, config: DramConfig, state: ChannelState, *, begin: int) -> None:
        self.ends: list[int] = []
        clock = RefreshClock(config, state.refresh)
        super().__init__(config, state, at=0, clock=clock, ends=self.ends)
        self._begin = begin
        self._accounted = max(begin, clock.open_from)
        self.tally.refresh = self._accounted - begin
        self.stopped = NEVER
        self.served: list[list[Piece]] = []
        self.batches: list[Mark] = []
        self._queue: deque[_Request] = deque()

    def admit(self, write: bool, line: int, lines: int, pushed: int) -> None:
        """Admit a burst of ``lines`` lines from ``line`` on in cycle ``pushed``.

        The lines must be in the same row of two bank groups. Bursts come in the order of
        ``pushed``.
        """
        (bank, row), (other, _) = self._place(line), self._place(line ^ 1)
        request = _Request(write, [bank, other][:lines], row, pushed, lines)
        self._queue.append(request)
        if self.stopped == NEVER:
            self._serve()
        else:
            self._open_in_vain(len(self.ends) + len(self._queue) - 1, request)

    def below(self, bursts: int) -> int:
        """Return the first cycle with fewer than ``bursts`` of the admitted bursts in the queue."""
        index = len(self.ends) + len(self._queue) - bursts
        if index < 0:
            return 0
        return self.ends[index] + 1 if index < len(self.ends) else NEVER

    def resume(self) -> None:
        """Refresh as decided in ``stopped`` and go on."""
        decision, self.stopped = self.stopped, NEVER
        self._refresh(decision, forced=True, idle_until=LONG_AGO)
        self._serve()

    def _serve(self) -> None:
        """Serve the queued bursts, up to the next decision to refresh."""
        while self._queue:
            request = self._queue[0]
            if request.pushed - self._last_end > self._controller.refresh_idle_cycles:
                self.rest(request.pushed)
            deadline = self._clock.forced()
            self._give_columns(request, deadline)
            if request.left:
                self.stopped = deadline
                for index in range(1, len(self._queue)):
                    self._open_in_vain(len(self.ends) + index, self._queue[index])
                return
            self._queue.popleft()
            self.ends.append(self._last_end)
            self.served.append(request.columns)

    def _open_in_vain(self, burst: int, request: _Request) -> None:
        """Open rows that the refresh closes before they are used."""
        for bank in request.banks:
            # Rows after the decision must not enter the planner's times.
            if self._planner.blocked:
                return
            self._planner.open(burst, request.pushed, bank, request.row, self.stopped)

    def _give_columns(self, request: _Request, deadline: int) -> None:
        """Open the rows of the oldest request and give its columns, up to the deadline."""
        planner = self._planner
        prepared = 0
        for bank in request.banks:
            prepared = planner.open(len(self.ends), request.pushed, bank, request.row, deadline)
        prepared += PREPARED_TO_COLUMN
        start = self._last_end + 1
        size = 1
        while request.left:
            # The first line, then all others.
            bank = request.banks[request.side]
            row_from = max(prepared, planner.column_from(bank))
            spaced = self._spaced(request.write, bank)
            start = max(start, row_from, spaced)
            self._wait(request.pushed, row_from, min(start, deadline + 1))
            size = min(size, request.left)
            given = min(size, deadline + 1 - start)
            if given <= 0:
                return
            self._note_columns(request, start, given)
            if given < size:
                return
            start += given
            size = request.left

    def finish(self, done: int) -> None:
        """End the run in cycle ``done``."""
        if done - self._last_end > self._controller.refresh_idle_cycles:
            self.rest(done)
        decision, _ = self._clock.decision(self._last_end, done)
        self._wait(done, 0, min(decision, done) + 1)
        self.tally.refresh += done + 1 - self._accounted
        self.tally.refreshes = sum(self._begin <= cycle <= done for cycle in self._clock.given)

    def mark(self) -> Mark:
        """Return the counts up to the last column or refresh."""
        self.tally.refreshes = len(self._clock.given)
        return Mark(self._accounted, replace(self.tally))

    def _note_columns(self, request: _Request, start: int, lines: int) -> None:
        """Record columns of the request, which go to its two banks in turn without a gap."""
        end = start + lines - 1
        last_side = request.side ^ 1 ^ lines & 1
        if lines > 1:
            self._note_column(request.write, request.banks[last_side ^ 1], end - 1)
        self._note_column(request.write, request.banks[last_side], end)
        request.columns.append(Piece(start, lines))
        request.side = last_side ^ 1
        request.left -= lines
        self._accounted = end + 1
        self.tally.data += lines

    def _wait(self, pushed: int, row_from: int, until: int) -> None:
        """Account for the cycles before ``until``, in which no column is given.

        The oldest burst is admitted in ``pushed`` and has its row from ``row_from`` on.
        """
        tally = self.tally
        start = self._accounted
        if start >= until:
            return
        queued = min(max(start, pushed + PUSH_TO_QUEUED), until)
        opened = min(max(queued, row_from), until)
        tally.starved += queued - start
        tally.row += opened - queued
        tally.turn_around += until - opened
        self._accounted = until

    def _refresh(self, decision: int, *, forced: bool, idle_until: int) -> int:
        self._wait(idle_until, 0, decision + 1)
        last = super()._refresh(decision, forced=forced, idle_until=idle_until)
        self.tally.refresh += max(0, last + 1 - max(decision + 1, self._accounted))
        self._accounted = max(self._accounted, last + 1)
        if forced:
            self.batches.append(self.mark())
        return last
