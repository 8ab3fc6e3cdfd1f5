"""Refresh policy of the controller: postponed under load, in advance when idle (JESD79-4).

One refresh falls due every tREFI. Under load they are collected until ``refresh_postpone`` are owed
or eight intervals have passed since the last one. Then rows are closed once and all owed refreshes
are given. After ``refresh_idle_cycles`` without a request, owed refreshes are given at once. Up to
``refresh_pull_in`` are then given in advance, at most one per interval beyond the one that is due.
"""

from __future__ import annotations

from dataclasses import dataclass

from hw.dram.fabric_timing import FabricTiming

from . import DramConfig

__all__ = ["LONG_AGO", "NEVER", "RefreshClock", "RefreshState"]

LONG_AGO = -(1 << 40)
"""Fabric cycle of an event that never happened."""

NEVER = 1 << 62
"""Fabric cycle of an event that does not happen, or is not known yet; later than any other."""

MAX_INTERVALS_WITHOUT = 8
"""Intervals after which a refresh is given even if none is owed."""

EXTRA_PER_INTERVAL = 2
"""Unforced refreshes per interval, at most: the one that falls due and one in advance."""

PROMPT_PAUSE_REFRESHES = 2
"""Pause between refreshes that are not postponed, in tRFC."""

# Pipeline latencies of the refresh scheduler, calibrated against RTL, in fabric cycles.
DUE_TO_OWED = 1
"""Latency from the end of an interval until the refresh counts as owed."""
DECISION_TO_PRECHARGE = 1
DECISION_TO_REFRESH = 2
"""Latency from a decision to its refresh if no bank is open."""
LATEST_NEXT_REFRESH = 2
"""Time before the end of tRFC at which another refresh is decided on."""


@dataclass(frozen=True, kw_only=True)
class RefreshState:
    """State of the refreshes at a moment between two runs."""

    owed: int
    """Refreshes owed; negative if refreshes were given in advance."""
    elapsed_fabric_cycles: int
    """Fabric cycles since the last interval ended, up to tREFI - 1.

    It is negative if a coming refresh is counted already, with an interval that ends before it.
    """
    intervals_without: int = 0
    """Intervals that ended since the last refresh."""
    in_advance_left: int = 0
    """Unforced refreshes that this interval still allows."""
    closed_fabric_cycles: int = 0
    """Fabric cycles for which a refresh in progress still keeps the controller closed."""
    given: int = 0
    """Refreshes so far."""
    since_fabric_cycles: int = 0
    """Fabric cycles since the last refresh."""
    longest_gap_fabric_cycles: int = 0
    """Longest time between two refreshes so far, in fabric cycles, without the present gap."""


class RefreshClock:
    """Refreshes of one channel from ``begin`` on, where its state is ``state``.

    With ``prompt``, as in normal mode, no refresh is postponed: it is given as soon as it is owed.
    Between two of them, waiting requests have twice tRFC.

    Callers pass cycles in ascending order; only :meth:`forced` looks ahead. ``given`` has the cycle
    of each refresh. ``open_from`` is the first cycle in which commands may be given again.
    ``owing_until`` is the cycle after the last refresh that had been owed.
    """

    def __init__(
        self, config: DramConfig, state: RefreshState, *, begin: int = 0, prompt: bool = False
    ) -> None:
        times, controller = FabricTiming.of(config.part.timing), config.controller
        self._enabled = controller.refresh
        self._prompt = prompt
        self._postpone = 1 if prompt else controller.refresh_postpone
        self._pull_in = controller.refresh_pull_in
        self._idle_cycles = controller.refresh_idle_cycles
        self._interval = times.refresh_interval
        self._refresh_cycles = times.refresh_to_activate
        self._precharge_cycles = times.precharge_to_activate
        earliest = min(0, state.since_fabric_cycles)
        if not earliest <= state.elapsed_fabric_cycles < self._interval:
            raise ValueError(
                f"elapsed_fabric_cycles must be from {earliest} to tREFI - 1 = "
                f"{self._interval - 1}, got {state.elapsed_fabric_cycles}"
            )
        self._next_due = begin + self._interval - 1 - state.elapsed_fabric_cycles
        self._owed = state.owed
        self._without = state.intervals_without
        self._allowance = state.in_advance_left
        self.open_from = begin + state.closed_fabric_cycles
        self._begin = begin
        self.given: list[int] = []
        self._given_before = state.given
        self._last = begin - state.since_fabric_cycles
        # A refresh that follows at once is counted already.
        self.owing_until = self._last + 1 if self._owed >= 0 else begin
        self._longest_gap = state.longest_gap_fabric_cycles

    def state(self, cycle: int) -> RefreshState:
        """Return the state of the refreshes at ``cycle``."""
        self._pass(cycle)
        return RefreshState(
            owed=self._owed,
            elapsed_fabric_cycles=self._interval - 1 - (self._next_due - cycle),
            intervals_without=self._without,
            in_advance_left=self._allowance,
            closed_fabric_cycles=max(0, self.open_from - cycle),
            given=self._given_before + len(self.given),
            since_fabric_cycles=cycle - self._last,
            longest_gap_fabric_cycles=self._longest_gap,
        )

    def owed(self, cycle: int) -> int:
        """Return the refreshes owed at ``cycle``; negative if some were given in advance."""
        self._pass(cycle)
        return self._owed

    def forced(self) -> int:
        """Return the next cycle in which refreshes cannot be postponed further under load."""
        earliest = self.open_from
        if self._prompt and (self.given or self._given_before):
            refreshed = self._last + self._refresh_cycles
            earliest = max(earliest, refreshed + PROMPT_PAUSE_REFRESHES * self._refresh_cycles)
        return self._forced(earliest)

    def _forced(self, earliest: int) -> int:
        if not self._enabled:
            return NEVER
        missing = min(self._postpone - self._owed, MAX_INTERVALS_WITHOUT - self._without)
        if missing <= 0:
            return earliest
        due = self._next_due + (missing - 1) * self._interval
        return max(earliest, due + DUE_TO_OWED)

    def decision(self, last_end: int, until: int) -> tuple[int, bool]:
        """Return the cycle of the next refresh decision without requests, and if it is forced.

        A cycle after ``until`` means that there is none.
        """
        if not self._enabled:
            return NEVER, False
        # Prompt refreshes need not pause when no request waits.
        forced = min(self.forced(), self._forced(max(last_end + 1, self.open_from)))
        idle = max(last_end + 1 + self._idle_cycles, self.open_from)
        if idle > until:
            return forced, True
        self._pass(idle)
        if not (self._owed > 0 or (self._owed > -self._pull_in and self._allowance)):
            idle = max(idle, self._next_due + DUE_TO_OWED)
        return (forced, True) if forced <= idle else (idle, False)

    def give(self, decision: int, *, forced: bool, idle_until: int, settled: int | None) -> int:
        """Give the refreshes of a decision; return the last cycle with the controller closed.

        ``settled`` is the first cycle in which all banks may be precharged, None if none is open.
        After a forced decision, all owed refreshes are given, unless refreshes are prompt.
        Otherwise they are given only while nothing is requested, up to ``idle_until``.
        """
        refresh = decision + DECISION_TO_REFRESH
        if settled is not None:
            precharge = max(decision + DECISION_TO_PRECHARGE, settled)
            refresh = precharge + self._precharge_cycles
        return self._give(refresh, forced and not self._prompt, idle_until)

    def go_on(self, idle_until: int) -> None:
        """Give the refreshes that follow one in progress, while nothing is requested."""
        latest = min(self.open_from - LATEST_NEXT_REFRESH, idle_until)
        if latest > max(self._begin, self._last) and self.owed(latest) > 0:
            self._give(self.open_from, False, idle_until)

    def _give(self, refresh: int, forced: bool, idle_until: int) -> int:
        while True:
            self._pass(refresh)
            if self._owed > 0:
                self.owing_until = refresh + 1
            self._owed -= 1
            self._without = 0
            self._allowance = max(0, self._allowance - 1)
            self.given.append(refresh)
            self._longest_gap = max(self._longest_gap, refresh - self._last)
            self._last = refresh
            following = refresh + self._refresh_cycles
            latest = following - LATEST_NEXT_REFRESH
            if not forced:
                latest = min(latest, idle_until)
            if latest > refresh:
                self._pass(latest)
            if latest <= refresh or self._owed <= 0:
                self.open_from = following
                return following - 1
            refresh = following

    def _pass(self, cycle: int) -> None:
        """Count the intervals that ended before ``cycle``."""
        while self._next_due < cycle:
            self._next_due += self._interval
            self._owed += self._enabled
            self._without += 1
            self._allowance = EXTRA_PER_INTERVAL
