"""Planner that opens the rows of queued bursts ahead of their columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hw.dram.fabric_timing import FabricTiming
from hw.dram.geometry import DramGeometry

from .refresh import LONG_AGO, NEVER

__all__ = ["RowPlanner", "Tally"]

# Pipeline latencies, calibrated against RTL, in fabric cycles.
PUSH_TO_PLAN = 1
PLAN_TO_ACTIVATE = 1


@dataclass
class Tally:
    """Counts of a channel up to a moment; the first five are times in fabric cycles."""

    data: int = 0
    """Fabric cycles with a column, which are also the lines moved."""
    refresh: int = 0
    row: int = 0
    turn_around: int = 0
    starved: int = 0
    activates: int = 0
    precharges: int = 0
    refreshes: int = 0
    bus_turns: int = 0


class RowPlanner:
    """Two-stage pipeline over the banks of the bursts, in order.

    The first stage looks at one bank a cycle. A bank with another row is precharged as soon as no
    earlier burst needs it and tRAS, tRTP and tWR are over; the banks behind it wait. The second
    stage activates in the same order, when tRP, tRRD and tFAW allow. Commands after a deadline are
    computed but not counted.

    Parameters
    ----------
    geometry, times: the channel's.
    ends: cycle of the last column of each burst; the caller extends it.
    tally: counts of activates and precharges.
    open_from: first cycle in which commands may be given.
    open_rows: open row of each bank or -1; empty if all are closed. They were opened long before.

    Attributes
    ----------
    any_open: a bank was opened or planned to be.
    blocked: a bank's turn came after the deadline, so all later turns do.
    last_activate: cycle of the last activate that was counted.
    """

    def __init__(
        self,
        geometry: DramGeometry,
        times: FabricTiming,
        *,
        ends: list[int],
        tally: Tally,
        open_from: int,
        open_rows: Sequence[int] = (),
    ) -> None:
        self._times = times
        self._ends = ends
        self._tally = tally
        self._banks_per_group = geometry.banks_per_group
        self._row = list(open_rows) or [-1] * geometry.banks
        # Burst that uses each bank last, -1 if it was opened before the run.
        self._user = [-1] * geometry.banks
        self._activated = [LONG_AGO] * geometry.banks
        self._released = [LONG_AGO] * geometry.banks
        self._group_activated = [LONG_AGO] * geometry.bank_groups
        self._recent = deque([LONG_AGO] * 4, maxlen=4)
        self._prepared = LONG_AGO
        self._planned = open_from - 1
        self.any_open = bool(open_rows)
        self.blocked = False
        self.last_activate = LONG_AGO

    def open(self, burst: int, pushed: int, bank: int, row: int, deadline: int) -> int:
        """Open ``row`` for a burst admitted in cycle ``pushed``; return the cycle of the activate.

        If the row is open already, this is the cycle in which the bank passes the second stage.
        """
        planned = max(self._planned + 1, pushed + PUSH_TO_PLAN)
        open_row = self._row[bank]
        if open_row == row:
            prepared = max(planned + PLAN_TO_ACTIVATE, self._prepared + 1)
        else:
            times = self._times
            ready = 0
            if open_row >= 0:
                planned = max(
                    planned,
                    self._unused_from(self._user[bank]),
                    self._activated[bank] + times.activate_to_precharge,
                    self._released[bank],
                )
                ready = planned + times.precharge_to_activate
                self._tally.precharges += planned <= deadline
            group = bank // self._banks_per_group
            recent = self._recent
            prepared = max(
                planned + PLAN_TO_ACTIVATE,
                self._prepared + 1,
                ready,
                recent[-1] + times.activate_to_activate,
                self._group_activated[group] + times.activate_to_activate_same_group,
                recent[0] + times.four_activates,
            )
            self._activated[bank] = prepared
            self._group_activated[group] = prepared
            recent.append(prepared)
            if prepared <= deadline:
                self._tally.activates += 1
                self.last_activate = prepared
        self._planned = planned
        self._prepared = prepared
        if planned > deadline:
            self.blocked = True
        else:
            self.any_open = True
            self._row[bank] = row
            self._user[bank] = burst
        return prepared

    def pass_open(self, bursts: int, pushed: int) -> None:
        """Pass one-line bursts to open rows, the last of them admitted in ``pushed``."""
        self._planned = max(self._planned + bursts, pushed + PUSH_TO_PLAN)
        self._prepared = max(self._prepared + bursts, self._planned + PLAN_TO_ACTIVATE)

    @property
    def open_rows(self) -> tuple[int, ...]:
        """Open row of each bank, -1 if closed; empty if all are closed."""
        return tuple(self._row) if self.any_open else ()

    def _unused_from(self, user: int) -> int:
        """Return the first cycle after the columns of a burst."""
        if user < 0:
            return 0
        return self._ends[user] + 1 if user < len(self._ends) else NEVER

    def column_from(self, bank: int) -> int:
        """Return the first cycle for a column to the row that was opened last in ``bank``."""
        return self._activated[bank] + self._times.activate_to_column

    def usable_from(self, bank: int, row: int) -> int:
        """Return :meth:`column_from`, or ``NEVER`` if ``row`` is not open in the bank."""
        return self.column_from(bank) if self._row[bank] == row else NEVER

    def release(self, bank: int, cycle: int) -> None:
        """Allow a precharge of ``bank`` from ``cycle`` on, after its columns."""
        self._released[bank] = cycle
