"""Host requests in normal mode: the cycles in which they are served, and late reads.

Requests cross the link one line in two fabric cycles, queue up before the DRAM controller and are
served in order. A read without its data after the fixed latency is late: the data are lost, and the
host repeats the read.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hw.axdimm.config import ModuleConfig
from sw_driver.device.link import LINK_FABRIC_CYCLES_PER_LINE

from ..dram.channel import ChannelState, DramChannel
from ..dram.refresh import LONG_AGO, RefreshClock, RefreshState

__all__ = ["HostTraffic", "HostTransfer"]

# Capacities of the stages that a request passes, by the architecture.
PORT_ROOM = 123
"""Requests in the port's queue with which the host has to wait."""
BEFORE_QUEUE = {False: 5, True: 20}
"""Requests between the port's queue and the controller's, for reads (False) and writes (True).

For reads: four addresses and one on offer. For writes: 16 bursts with their data, and four before
their data.
"""

# Pipeline latencies, calibrated against RTL, in fabric cycles.
REQUEST_TO_PORT = 2
"""Latency from a request until it can leave the port's queue."""
PORT_TO_ADMISSION = {False: 2, True: 3}
"""Latency from the port's queue to the controller, for reads (False) and writes (True)."""
COLUMN_TO_ROOM = {False: 2, True: 3}
"""Latency from a column until a request that waits for its place can leave the port's queue."""
PORT_TO_READY = 2
"""Latency from a request's exit from the port's queue until the host sees the room."""
ADMISSION_TO_COLUMN = 3
"""Latency to a column in an open row."""
PREPARED_TO_COLUMN = 1
COLUMN_TO_DATA = 2
"""Latency from a read's column to its data, beside the DRAM's latency."""
COLUMN_TO_WRITTEN = 1
"""Latency from a write's column until it is answered."""
ANSWERED_TO_TURN = 1
"""Latency from an answer until a request of the other direction can leave the port's queue."""
DATA_TO_RESPONSE = 2
"""Latency from a read's data to its response."""
COLUMN_TO_IDLE = {False: 3, True: 2}
"""Latency from a column until the controller is idle, beside the DRAM's latency."""

_SAFE_WAIT = 200
"""Fabric cycles that a request can wait without the port's queue being full."""

_REMEMBERED = 256


class HostTransfer(NamedTuple):
    """Outcome of the requests for a stretch of lines."""

    last_cycle: int
    """Cycle of the last line's request."""
    late: list[tuple[int, int]]
    """First line and number of lines of each late stretch."""


class HostTraffic(DramChannel):
    """DRAM of a channel while the host owns it; refreshes are not postponed.

    Cycles count from any moment and never go back. Lines in an open row are served together. So the
    simulation time grows with rows and refreshes, not with lines.

    Parameters
    ----------
    config: the module.
    state: its state at ``begin``.
    begin: cycle from which on the refreshes are no longer postponed.
    """

    def __init__(self, config: ModuleConfig, state: ChannelState, *, begin: int) -> None:
        clock = RefreshClock(config, state.refresh, begin=begin, prompt=True)
        # Cycle of each bank's last column; a bank is the user of its own row.
        ends = [LONG_AGO] * config.part.geometry.banks
        super().__init__(config, state, at=begin, clock=clock, ends=ends)
        self._read_latency = read_latency = config.read_latency_fabric_cycles
        data_latency = self._times.read_latency + COLUMN_TO_DATA
        self._latest_in_time = read_latency - DATA_TO_RESPONSE - data_latency
        self._row_pair_lines = 2 * config.part.geometry.bursts_per_row
        self._left_port = LONG_AGO
        # First request of the present direction, and the cycle in which it left the port.
        self._direction = state.writing
        self._turned = 0
        self._turned_left = LONG_AGO
        # Columns given, in stretches: number of the first, its cycle, cycles between two.
        self._columns: deque[tuple[int, int, int]] = deque(maxlen=_REMEMBERED)
        self._served = 0

    def transfer(self, *, write: bool, line: int, lines: int, cycle: int) -> HostTransfer:
        """Request ``lines`` lines from ``line`` on, from ``cycle`` on."""
        late: list[tuple[int, int]] = []
        end = line + lines
        while line < end:
            cycle = max(cycle, self._left(self._served - PORT_ROOM) + PORT_TO_READY)
            column = self._serve(write, line, cycle, more=line + 1 < end)
            is_late = column > cycle + self._latest_in_time
            _note_late(late, line, is_late and not write)
            line += 1
            row_left = min(end, -(-line // self._row_pair_lines) * self._row_pair_lines) - line
            if row_left > 0 and self._is_open(line):
                next_cycle = cycle + LINK_FABRIC_CYCLES_PER_LINE
                served, came_late = self._stream(write, line, row_left, next_cycle)
                _note_late(late, line, 0 if write else came_late)
                line += served
                cycle += LINK_FABRIC_CYCLES_PER_LINE * served
            cycle += LINK_FABRIC_CYCLES_PER_LINE
        return HostTransfer(cycle - LINK_FABRIC_CYCLES_PER_LINE, late)

    def register(self, cycle: int) -> int:
        """Return the cycle in which a register request of ``cycle`` is carried out."""
        self._left_port = max(cycle + REQUEST_TO_PORT, self._left_port + 1)
        return self._left_port

    def in_time(self, cycle: int, carried_out: int) -> bool:
        """Return whether a read of ``cycle``, done in ``carried_out``, is in time for the host."""
        return carried_out <= cycle + self._read_latency - DATA_TO_RESPONSE

    def idle_from(self, cycle: int) -> int:
        """Return the first cycle from ``cycle`` on with nothing in flight and no refresh due."""
        clock, times = self._clock, self._times
        idle = max(
            cycle,
            self._last_read + times.read_latency + COLUMN_TO_IDLE[False],
            self._last_write + times.write_latency + COLUMN_TO_IDLE[True],
        )
        while True:
            self.rest(idle)
            if clock.owed(idle) > 0:
                clock.go_on(idle)
                self._planner = self._new_planner()
            if clock.owing_until > idle:
                idle = clock.owing_until
            elif clock.owed(idle) > 0:
                idle = clock.open_from
            else:
                return idle

    def refreshes(self, cycle: int) -> RefreshState:
        """Return the refresh state at ``cycle``, or after the last column if that is later."""
        cycle = max(cycle, self._last_end + 1)
        self.rest(cycle)
        return self._clock.state(cycle)

    def state(self, cycle: int) -> ChannelState:
        """Return the state of the channel at ``cycle``, after all columns."""
        self.rest(cycle)
        return super().state(cycle)

    def _serve(self, write: bool, line: int, cycle: int, *, more: bool) -> int:
        """Serve one line that is requested in ``cycle``; return the cycle of its column.

        ``more``: the next line is requested after it.
        """
        controller, times = self._controller, self._times
        last_of_other = (
            self._last_read + times.read_latency + COLUMN_TO_DATA
            if write
            else self._last_write + COLUMN_TO_WRITTEN
        )
        latency = REQUEST_TO_PORT + PORT_TO_ADMISSION[write]
        self._left_port = left = max(
            cycle + REQUEST_TO_PORT,
            self._left_port + 1,
            last_of_other + ANSWERED_TO_TURN,
            self._room_from(self._served, write),
        )
        if write is not self._direction:
            self._direction = write
            self._turned, self._turned_left = self._served, left
        pushed = self._pushed(self._served, write)
        if pushed - self._last_end > controller.refresh_idle_cycles:
            self.rest(pushed)
        bank, row = self._place(line)
        spaced = self._spaced(write, bank)
        while True:
            deadline = self._clock.forced()
            prepared = self._planner.open(bank, pushed, bank, row, deadline)
            column = max(
                self._last_end + 1,
                prepared + PREPARED_TO_COLUMN,
                self._planner.column_from(bank),
                spaced,
            )
            if column <= deadline:
                break
            if more and not self._planner.blocked:
                # The next line's row may be opened in vain; the refresh waits until it may close.
                next_pushed = max(pushed + 1, cycle + LINK_FABRIC_CYCLES_PER_LINE + latency)
                self._planner.open(bank, next_pushed, *self._place(line + 1), deadline)
            self._refresh(deadline, forced=True, idle_until=pushed)
        last_first, last_cycle, step = self._columns[-1] if self._columns else (0, LONG_AGO, 1)
        if column != last_cycle + step * (self._served - last_first):
            self._columns.append((self._served, column, 1))
        self._served += 1
        self._note_column(write, bank, column)
        return column

    def _stream(self, write: bool, line: int, lines: int, cycle: int) -> tuple[int, int]:
        """Serve lines in the open row, up to the next refresh.

        Return the number of lines, and the number of late ones, which are the first.
        """
        behind = self._last_end + 1
        wait = behind - cycle
        if wait > _SAFE_WAIT:
            return 0, 0
        deadline = self._clock.forced()
        # After the waiting lines, the columns come at the pace of the link.
        latency = REQUEST_TO_PORT + PORT_TO_ADMISSION[write] + ADMISSION_TO_COLUMN
        pace = LINK_FABRIC_CYCLES_PER_LINE
        waiting = min(max(0, wait - latency), lines)
        if deadline < behind + waiting:
            waiting = lines = max(0, deadline + 1 - behind)
        steady_from = cycle + latency + pace * waiting
        lines = min(lines, waiting + max(0, (deadline - steady_from) // pace + 1))
        if lines == 0:
            return 0, 0
        if waiting:
            self._columns.append((self._served, behind, 1))
        if lines > waiting:
            self._columns.append((self._served + waiting, steady_from, pace))
        late = min(lines, waiting, max(0, wait - self._latest_in_time))
        if latency > self._latest_in_time:
            late = lines
        self._served += lines
        for place in range(max(0, lines - 2), lines):
            self._note_column(
                write, self._place(line + place)[0], self._column(self._served - lines + place)
            )
        last_asked = cycle + pace * (lines - 1)
        last = self._served - 1
        self._left_port = max(last_asked + REQUEST_TO_PORT, self._room_from(last, write))
        self._planner.pass_open(lines, self._pushed(last, write))
        return lines, late

    def _room_from(self, request: int, write: bool) -> int:
        """Return the first cycle with room behind the port's queue for a request."""
        before_queue = self._controller.queue_depth + BEFORE_QUEUE[write]
        return self._column(request - before_queue) + COLUMN_TO_ROOM[write]

    def _pushed(self, request: int, write: bool) -> int:
        """Return the cycle in which the port's last request is in the controller's queue."""
        room = self._column(request - self._controller.queue_depth) + 1
        return max(self._left_port + PORT_TO_ADMISSION[write], room)

    def _left(self, request: int) -> int:
        """Return the latest cycle in which a request left the port's queue, if that was full."""
        after_turn = request - self._turned
        write = self._direction if after_turn >= 0 else not self._direction
        room = self._room_from(request, write)
        return max(room, self._turned_left + after_turn) if after_turn >= 0 else room

    def _is_open(self, line: int) -> bool:
        """Return whether the banks of ``line`` and its neighbour can take columns at once."""
        planner = self._planner
        return all(
            planner.usable_from(*self._place(neighbour)) <= self._last_end + 1
            for neighbour in (line, line ^ 1)
        )

    def _note_column(self, write: bool, bank: int, column: int) -> None:
        super()._note_column(write, bank, column)
        self._ends[bank] = column

    def _column(self, index: int) -> int:
        """Return the cycle of a column by its number, or ``LONG_AGO`` if it is forgotten."""
        for first, cycle, step in reversed(self._columns):
            if first <= index:
                return cycle + step * (index - first)
        return LONG_AGO


def _note_late(late: list[tuple[int, int]], line: int, lines: int) -> None:
    """Add a stretch of late lines, in ascending order."""
    if not lines:
        return
    if late and sum(late[-1]) == line:
        first, before = late.pop()
        line, lines = first, before + lines
    late.append((line, lines))
