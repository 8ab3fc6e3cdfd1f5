"""DRAM of a channel: its rows and refreshes, and the spacing between columns."""

from __future__ import annotations

from dataclasses import dataclass

from hw.dram.fabric_timing import FabricTiming
from sw_driver.numbers import check_integer

from . import DramConfig
from .refresh import LONG_AGO, RefreshClock, RefreshState
from .rows import RowPlanner, Tally

__all__ = ["ChannelState", "DramChannel"]


@dataclass(frozen=True, kw_only=True)
class ChannelState:
    """State of a channel without requests, at START or any other moment, that affects later times.

    The index of a bank is its group times the banks of a group, plus its number in the group.
    """

    refresh: RefreshState
    open_rows: tuple[int, ...] = ()
    """Open row of each bank, -1 if there is none; empty if all banks are closed."""
    writing: bool = False
    """True if the last column was a write."""
    since_column: int = 1 << 40
    """Fabric cycles since the last column, by default a long time."""

    @classmethod
    def after_idle(
        cls, config: DramConfig, elapsed_fabric_cycles: int | None = None
    ) -> ChannelState:
        """Return the state after a long time without requests.

        All allowed refreshes have been given in advance. ``elapsed_fabric_cycles`` is the position
        within the refresh interval, modulo the interval; by default its middle. A refresh is in
        progress if the interval has only just begun.
        """
        interval = FabricTiming.of(config.part.timing).refresh_interval
        elapsed = interval // 2
        if elapsed_fabric_cycles is not None:
            elapsed = check_integer("elapsed_fabric_cycles", elapsed_fabric_cycles, 0)
        # Start just before the last interval ended.
        ahead = config.controller.refresh_pull_in
        refresh = RefreshState(owed=-ahead, elapsed_fabric_cycles=interval - 1)
        return cls(refresh=refresh).after_rest(config, elapsed % interval + 1)

    def after_rest(self, config: DramConfig, fabric_cycles: int) -> ChannelState:
        """Return the state after more fabric cycles without requests, which refreshes may use."""
        clock = RefreshClock(config, self.refresh)
        clock.go_on(fabric_cycles)
        channel = DramChannel(config, self, at=0, clock=clock, ends=[])
        channel.rest(fabric_cycles)
        return channel.state(fabric_cycles)


class DramChannel:
    """DRAM of a channel, for the kernel's controller and for the host's requests.

    Parameters
    ----------
    config: the channel.
    state: its state at cycle ``at``.
    clock: its refreshes.
    ends: cycle of the last column of each burst or bank, see :class:`RowPlanner`.
    """

    def __init__(
        self,
        config: DramConfig,
        state: ChannelState,
        *,
        at: int,
        clock: RefreshClock,
        ends: list[int],
    ) -> None:
        self._controller = config.controller
        self._geometry = geometry = config.part.geometry
        self._times = FabricTiming.of(config.part.timing)
        self._clock = clock
        self._ends = ends
        self.tally = Tally()
        self._planner = self._new_planner(state.open_rows)
        self._writing = state.writing
        self._last_end = at - state.since_column
        self._last_read = self._last_write = LONG_AGO
        self._last_group = -1
        self._group_written = [LONG_AGO] * geometry.bank_groups

    def state(self, cycle: int) -> ChannelState:
        """Return the state of the channel at ``cycle``, after all columns."""
        return ChannelState(
            refresh=self._clock.state(cycle),
            open_rows=self._planner.open_rows,
            writing=self._writing,
            since_column=cycle - self._last_end,
        )

    def rest(self, cycle: int) -> None:
        """Let the time pass up to ``cycle``, without requests since the last column."""
        while True:
            decision, forced = self._clock.decision(self._last_end, cycle)
            if decision > cycle:
                return
            self._refresh(decision, forced=forced, idle_until=cycle)

    def _new_planner(self, open_rows: tuple[int, ...] = ()) -> RowPlanner:
        return RowPlanner(
            self._geometry,
            self._times,
            ends=self._ends,
            tally=self.tally,
            open_from=self._clock.open_from,
            open_rows=open_rows,
        )

    def _place(self, line: int) -> tuple[int, int]:
        """Return the bank and row of a line."""
        geometry = self._geometry
        rest, pair = divmod((line >> 1) // geometry.bursts_per_row, geometry.bank_groups // 2)
        row, bank = divmod(rest, geometry.banks_per_group)
        return (2 * pair + (line & 1)) * geometry.banks_per_group + bank, row

    def _spaced(self, write: bool, bank: int) -> int:
        """Return the first cycle for a column that earlier columns allow."""
        times = self._times
        group = bank // self._geometry.banks_per_group
        same_group = LONG_AGO
        if group == self._last_group:
            same_group = self._last_end + times.column_to_column_same_group
        if write:
            return max(same_group, self._last_read + times.read_to_write)
        return max(
            same_group,
            self._last_write + times.write_to_read,
            self._group_written[group] + times.write_to_read_same_group,
        )

    def _note_column(self, write: bool, bank: int, column: int) -> None:
        times = self._times
        self._last_end = column
        self._last_group = group = bank // self._geometry.banks_per_group
        if write:
            self._last_write = self._group_written[group] = column
            closed_from = column + times.write_to_precharge
        else:
            self._last_read = column
            # Earlier columns of the bank may have been writes.
            closed_from = max(
                column + times.read_to_precharge, self._last_write + times.write_to_precharge
            )
        self._planner.release(bank, closed_from)
        if write is not self._writing:
            self._writing = write
            self.tally.bus_turns += 1

    def _refresh(self, decision: int, *, forced: bool, idle_until: int) -> int:
        """Close all rows and refresh; return the last cycle in which the channel is closed."""
        times, planner = self._times, self._planner
        settled = None
        if planner.any_open:
            settled = max(
                planner.last_activate + times.activate_to_precharge,
                self._last_read + times.read_to_precharge,
                self._last_write + times.write_to_precharge,
            )
            self.tally.precharges += 1
        last = self._clock.give(decision, forced=forced, idle_until=idle_until, settled=settled)
        self._planner = self._new_planner()
        return last
