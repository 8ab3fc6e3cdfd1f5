"""The DRAM controller of a channel: serves bursts in the order in which they were admitted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .config import CycleConfig
from .refresh import NEVER, RefreshClock
from .rows import RowPlanner
from .state import ChannelState
from .tally import Tally
from .timing import FabricTimes

__all__ = ["Controller", "Mark", "Piece"]

_LONG_AGO = -(1 << 40)

# Pipeline latencies, calibrated against RTL, in fabric cycles.
PUSH_TO_QUEUED = 1
PREPARED_TO_COLUMN = 1


class Piece(NamedTuple):
    """Columns without a gap between them."""

    first_cycle: int
    lines: int


class Mark(NamedTuple):
    """What was counted before a cycle."""

    cycle: int
    tally: Tally


@dataclass
class _Request:
    """A burst in the queue, with what is left of it."""

    write: bool
    groups: tuple[int, int]
    banks: list[int]
    row: int
    pushed: int
    left: int
    side: int = 0
    """Which of the groups has the next line."""
    columns: list[Piece] = field(default_factory=list)


class Controller:
    """Serves one burst after the other and accounts for every fabric cycle from ``begin`` on.

    The lines of a burst alternate between two bank groups, one line a cycle; only between the first
    and the second may there be a gap, and where a refresh comes between.

    Bursts are served when they are admitted, into the future, up to the next decision to refresh
    (``stopped``). What comes after it depends on what is admitted before it: the caller admits all
    of that, and then calls :meth:`resume`.

    ``ends`` has the cycle of the last column of each burst served, ``served`` the columns of those
    that the caller has not taken yet, and ``batches`` a mark after each forced refresh (of one or
    several).
    """

    def __init__(
        self, config: CycleConfig, times: FabricTimes, state: ChannelState, *, begin: int
    ) -> None:
        self._config = config
        self._times = times
        self._clock = RefreshClock(config, state.refresh)
        self._begin = begin
        self._accounted = max(begin, self._clock.open_from)
        self.tally = Tally(refresh=self._accounted - begin)
        self.stopped = NEVER
        self.ends: list[int] = []
        self.served: list[list[Piece]] = []
        self.batches: list[Mark] = []
        self._queue: deque[_Request] = deque()
        self._planner = self._new_planner(state.open_rows)
        self._last_read = self._last_write = _LONG_AGO
        self._last_end = _LONG_AGO
        self._last_group = -1
        self._group_written = [-since for since in state.since_group_written] or [
            _LONG_AGO
        ] * config.bank_groups
        self._writing = state.writing

    def admit(self, write: bool, line: int, lines: int, pushed: int) -> None:
        """Admits a burst of ``lines`` lines from ``line`` on in cycle ``pushed``.

        They must lie in the same row of two bank groups, and the bursts come in the order of
        ``pushed``.
        """
        config = self._config
        parity = line & 1
        rest, pair = divmod((line >> 1) // config.lines_per_row, config.bank_groups // 2)
        row, bank = divmod(rest, config.banks_per_group)
        groups = (2 * pair + parity, 2 * pair + 1 - parity)
        banks = [group * config.banks_per_group + bank for group in groups][:lines]
        request = _Request(write, groups, banks, row, pushed, lines)
        self._queue.append(request)
        if self.stopped == NEVER:
            self._serve()
        else:
            self._open_in_vain(len(self.ends) + len(self._queue) - 1, request)

    def resume(self) -> None:
        """Refreshes as decided in ``stopped`` and goes on."""
        decision, self.stopped = self.stopped, NEVER
        self._refresh(decision, forced=True, idle_until=_LONG_AGO)
        self._serve()

    def _serve(self) -> None:
        """Serves what is queued, up to the next decision to refresh."""
        while self._queue:
            request = self._queue[0]
            if request.pushed - self._last_end > self._config.refresh_idle_cycles:
                self._rest(request.pushed)
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
        """Opens rows that the refresh closes before they are used."""
        for bank in request.banks:
            # What comes after the decision must not enter the planner's times.
            if self._planner.blocked:
                return
            self._planner.open(burst, request.pushed, bank, request.row, self.stopped)

    def _give_columns(self, request: _Request, deadline: int) -> None:
        """Opens the rows of the oldest request and gives its columns, up to the deadline."""
        planner = self._planner
        prepared = 0
        for bank in request.banks:
            prepared = planner.open(len(self.ends), request.pushed, bank, request.row, deadline)
        prepared += PREPARED_TO_COLUMN
        start = self._last_end + 1
        size = 1
        while request.left:
            # The first line, then all others.
            row_from = max(prepared, planner.column_from(request.banks[request.side]))
            spaced = self._spaced(request.write, request.groups[request.side])
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
        """The run is over in cycle ``done``."""
        decision, _ = self._clock.decision(self._last_end, done)
        self._wait(done, 0, min(decision, done) + 1)
        self.tally.refresh += done + 1 - self._accounted
        self.tally.refreshes = sum(self._begin <= cycle <= done for cycle in self._clock.given)

    def mark(self) -> Mark:
        """What was counted before the cycle after the last column or refresh."""
        self.tally.refreshes = len(self._clock.given)
        return Mark(self._accounted, self.tally.copy())

    def state(self, cycle: int) -> ChannelState:
        """What is remembered at ``cycle``, after all columns."""
        return ChannelState(
            refresh=self._clock.state(cycle),
            open_rows=self._planner.open_rows,
            writing=self._writing,
            since_column=cycle - self._last_end,
            since_group_written=tuple(cycle - written for written in self._group_written),
        )

    def _new_planner(self, open_rows: Sequence[int] = ()) -> RowPlanner:
        return RowPlanner(
            self._config,
            self._times,
            ends=self.ends,
            tally=self.tally,
            open_from=self._clock.open_from,
            open_rows=open_rows,
        )

    def _spaced(self, write: bool, group: int) -> int:
        """The first cycle for a column as far as the columns before it matter."""
        times = self._times
        same_group = _LONG_AGO
        if group == self._last_group:
            same_group = self._last_end + times.column_to_column_same_group
        if write:
            return max(same_group, self._last_read + times.read_to_write)
        return max(
            same_group,
            self._last_write + times.write_to_read,
            self._group_written[group] + times.write_to_read_same_group,
        )

    def _note_columns(self, request: _Request, start: int, lines: int) -> None:
        """Columns of the request go to its two banks in turn, without a gap."""
        times = self._times
        end = start + lines - 1
        last_side = request.side ^ 1 ^ lines & 1
        if request.write:
            self._last_write = end
        else:
            self._last_read = end
        for side, column in ((last_side, end), (last_side ^ 1, end - 1)):
            if column < start:
                break
            if request.write:
                self._group_written[request.groups[side]] = column
                closed_from = column + times.write_to_precharge
            else:
                # Columns of the bank before this one may have been writes.
                closed_from = max(
                    column + times.read_to_precharge, self._last_write + times.write_to_precharge
                )
            self._planner.release(request.banks[side], closed_from)
        request.columns.append(Piece(start, lines))
        request.side = last_side ^ 1
        request.left -= lines
        self._last_end = end
        self._last_group = request.groups[last_side]
        self._accounted = end + 1
        self.tally.data += lines
        if request.write is not self._writing:
            self._writing = request.write
            self.tally.bus_turns += 1

    def _wait(self, pushed: int, row_from: int, until: int) -> None:
        """Accounts for the cycles before ``until``, in which no column is given.

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

    def _rest(self, pushed: int) -> None:
        """Refreshes before the next burst, which is admitted in cycle ``pushed``."""
        while True:
            decision, forced = self._clock.decision(self._last_end, pushed)
            if decision > pushed:
                return
            self._wait(pushed, 0, decision + 1)
            self._refresh(decision, forced=forced, idle_until=pushed)

    def _refresh(self, decision: int, *, forced: bool, idle_until: int) -> None:
        """Closes all rows and refreshes, as decided in a cycle up to which all is accounted for."""
        times = self._times
        planner = self._planner
        settled = None
        if planner.any_open:
            settled = max(
                planner.last_activate + times.activate_to_precharge,
                self._last_read + times.read_to_precharge,
                self._last_write + times.write_to_precharge,
            )
            self.tally.precharges += 1
        last = self._clock.give(decision, forced=forced, idle_until=idle_until, settled=settled)
        self.tally.refresh += max(0, last + 1 - max(decision + 1, self._accounted))
        self._accounted = max(self._accounted, last + 1)
        self._planner = self._new_planner()
        if forced:
            self.batches.append(self.mark())
