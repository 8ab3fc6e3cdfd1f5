"""When the controller refreshes: postponed under load, in advance when idle (JESD79-4).

One refresh falls due every tREFI. Under load they are collected until ``refresh_postpone`` are owed
or eight intervals have passed since the last one; then rows are closed once and all that is owed is
given. After ``refresh_idle_cycles`` without a request, what is owed is given at once, and up to
``refresh_pull_in`` in advance, at most one more an interval than falls due.
"""

from __future__ import annotations

from dataclasses import dataclass

from hw.dram.fabric_timing import FabricTiming

from . import DramConfig

__all__ = ["LONG_AGO", "NEVER", "RefreshClock", "RefreshState"]

LONG_AGO = -(1 << 40)

NEVER = 1 << 62
"""A fabric cycle later than any: what does not happen, or is not known yet."""

MAX_INTERVALS_WITHOUT = 8
"""Intervals after which a refresh is given whatever is owed."""

EXTRA_PER_INTERVAL = 2
"""Refreshes an interval that may be given unforced: the one that falls due and one in advance."""

PROMPT_PAUSE_REFRESHES = 2
"""Times tRFC between refreshes that are not postponed."""

# Pipeline latencies of the refresh scheduler, calibrated against RTL, in fabric cycles.
DUE_TO_OWED = 1
"""From the end of an interval until the refresh counts as owed."""
DECISION_TO_PRECHARGE = 1
DECISION_TO_REFRESH = 2
"""If no bank is open."""
LATEST_NEXT_REFRESH = 2
"""How long before the end of tRFC it is decided whether another refresh follows."""


@dataclass(frozen=True, kw_only=True)
class RefreshState:
    """Where refreshing stands at a moment between two runs."""

    owed: int
    """Refreshes owed; negative are those given in advance."""
    elapsed_fabric_cycles: int
    """Since the last interval ended, up to tREFI - 1. Negative if a refresh to come is counted
    already, and with it an interval that ends before it."""
    intervals_without: int = 0
    """Intervals that ended since the last refresh."""
    in_advance_left: int = 0
    """Unforced refreshes that this interval still allows."""
    closed_fabric_cycles: int = 0
    """Cycles for which a refresh in progress still keeps the controller closed."""
    given: int = 0
    """Refreshes so far."""
    since_fabric_cycles: int = 0
    """Since the last refresh."""
    longest_gap_fabric_cycles: int = 0
    """Longest time between two refreshes so far, the one in progress not included."""


class RefreshClock:
    """Follows the refreshes of one channel from ``begin`` on, where it stands as in ``state``.

    With ``prompt``, which is how it is in normal mode, no refresh is postponed: one is given as
    soon as it is owed, with twice tRFC after the one before for what waits.

    Cycles are given in ascending order, apart from what :meth:`forced` looks ahead. ``given`` has
    the cycle of each refresh, ``open_from`` the first cycle in which commands may be given again,
    ``owing_until`` the cycle after the last refresh that had been owed.
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
        # A refresh that is to come in a moment is counted already.
        self.owing_until = self._last + 1 if self._owed >= 0 else begin
        self._longest_gap = state.longest_gap_fabric_cycles

    def state(self, cycle: int) -> RefreshState:
        """Where refreshing stands at ``cycle``."""
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
        """Refreshes owed at ``cycle``; negative are those given in advance."""
        self._pass(cycle)
        return self._owed

    def forced(self) -> int:
        """The next cycle in which refreshes cannot be put off any longer, while requests wait."""
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
        """The next decision to refresh while nothing is requested, and whether it is forced.

        A cycle after ``until`` means that there is none.
        """
        if not self._enabled:
            return NEVER, False
        # What is prompt need not pause when nothing waits any more.
        forced = min(self.forced(), self._forced(max(last_end + 1, self.open_from)))
        idle = max(last_end + 1 + self._idle_cycles, self.open_from)
        if idle > until:
            return forced, True
        self._pass(idle)
        if not (self._owed > 0 or (self._owed > -self._pull_in and self._allowance)):
            idle = max(idle, self._next_due + DUE_TO_OWED)
        return (forced, True) if forced <= idle else (idle, False)

    def give(self, decision: int, *, forced: bool, idle_until: int, settled: int | None) -> int:
        """Gives what was decided on and returns the last cycle for which the controller is closed.

        ``settled`` is the first cycle in which all banks may be precharged, None if none is open.
        After a forced decision all that is owed is given, unless refreshes are prompt; otherwise
        only while nothing is requested, up to ``idle_until``.
        """
        refresh = decision + DECISION_TO_REFRESH
        if settled is not None:
            precharge = max(decision + DECISION_TO_PRECHARGE, settled)
            refresh = precharge + self._precharge_cycles
        return self._give(refresh, forced and not self._prompt, idle_until)

    def go_on(self, idle_until: int) -> None:
        """Gives what follows a refresh in progress, while nothing is requested."""
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
        """Counts the intervals that ended before ``cycle``."""
        while self._next_due < cycle:
            self._next_due += self._interval
            self._owed += self._enabled
            self._without += 1
            self._allowance = EXTRA_PER_INTERVAL
