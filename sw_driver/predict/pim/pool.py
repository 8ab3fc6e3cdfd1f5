"""Pool of a stack's banks, and the works that they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from golden.pim.descriptor import Descriptor
from golden.pim.pool import choose_banks, named_banks
from golden.pim.stack import StackMap
from hw.pim.config import PimConfig
from sw_driver.numbers import check_integer

from ..events import CycleClock
from .bank import Bank, Counts
from .dispenser import Dispenser
from .form import Form, Tiles, form_of
from .switch import Switch

__all__ = ["Pool", "WorkRun"]

# Pipeline latencies, in cycles.
START_TO_BANKS = 1
"""From a work's start, as its cycles are counted, until its banks start."""
DONE_TO_TURN = 1
"""From a bank's done until it may be counted, if it is then its turn."""
TURN_TO_COMPLETE = 2
"""From the turn of a work's last bank until the work completes."""
COMPLETE_TO_CHOICE = 2
"""From a work's completion until banks are chosen for others.

After an acceptance they are chosen at once.
"""
CHOICE_CYCLES = 3
"""Choice of banks for a waiting work, besides a cycle for each bank if the pool chooses them.

The work starts then; the next one has its turn a cycle later.
"""
GROWTH_CYCLES = 4
"""Choice of more banks for the first work that grows."""
PASS_CYCLES = 2
"""Pass over a work that has to wait for another, or if no bank is idle."""


USUAL_EVENTS = 100_000
"""Events after a start or completion before anything is extrapolated."""
_LOOK_EVENTS = 2000
"""Events between checks for an even pace."""
_WINDOWS = 9
"""Windows that are compared; the first one is left out.

In a window each bank does a tile on average. With half as many windows the rate of one pass was off
by 2 %.
"""
_MOST_WINDOWS = 12
EVEN = 0.01
"""Difference of two windows' paces, at most, unless there are ``_MOST_WINDOWS``; a fraction."""
RESERVE = 2
"""Tiles of each bank that are not extrapolated, so that the work's end is simulated."""


class _Window(NamedTuple):
    """Progress of the works in a cycle."""

    cycle: int
    runs: list[WorkRun]
    counts: dict[int, Counts]
    """Progress of each bank at work, by number."""
    done: list[int]
    """Products of each work that its banks at work have formed so far."""


@dataclass(eq=False)
class WorkRun:
    """Work that was offered to a pool."""

    work: Descriptor
    tiles: Tiles
    start: int | None = None
    end: int | None = None
    total: int = 0
    """Products of the work."""
    banks: dict[int, Counts] = field(default_factory=dict, init=False)
    """Progress of the banks that have done their part, by number."""
    lacking: int = 0
    """Units that the work takes beyond those of its banks, if the pool chooses them."""
    left: int = 0
    """Banks that have not done their part."""
    counted: int = 0
    """Cycle in which the last bank's part is counted."""


class Pool:
    """Pool that gives works to banks as the hardware does (docs/pim-spec.md, "The pool").

    ``shortened`` holds cycles and a factor. Of a longer tile only about their product of cycles is
    simulated; the tile then takes that time.
    """

    def __init__(self, config: PimConfig, *, shortened: tuple[int, int] | None = None) -> None:
        self.config = config
        for number in shortened or ():
            check_integer("shortened", number)
        self._shortened = shortened
        self._units = config.placement.units
        self._clock = clock = CycleClock()
        self._stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
        switch = Switch(clock, config)
        dispenser = Dispenser(clock, config.banks)
        self._banks = [
            Bank(clock, switch, config, number, ask=dispenser.ask, done=self._done)
            for number in range(config.banks)
        ]
        self.skipped = 0
        """Extrapolated cycles so far."""
        self._windows: list[_Window] = []
        self._events = 0
        """Events since a work started or completed."""
        self._offers = 0
        self._owner: list[WorkRun | None] = [None] * config.banks
        self._since = [0] * config.banks
        """Cycle from which each bank has had its work."""
        self._busy = [0] * config.banks
        """Cycles that each bank spent on works that have completed."""
        self._accepted: list[WorkRun] = []

    def offer(self, work: Descriptor) -> WorkRun:
        """Accept a valid work in the current cycle."""
        tiles = Tiles(self._form(work))
        run = WorkRun(work, tiles, total=tiles.left)
        self._accepted.append(run)
        self._offers += 1
        self._start(self.now)
        return run

    def _form(self, work: Descriptor) -> Form:
        form = form_of(work)
        return form if self._shortened is None else form.shortened(*self._shortened)

    def products(self, work: Descriptor) -> int:
        """Return the products of a valid work that are simulated or extrapolated as whole tiles."""
        return Tiles(self._form(work)).left

    def followed_cycles(self, work: Descriptor) -> int:
        """Return the approximate simulated cycles of a valid work on all banks.

        Whole tiles are extrapolated, after some of each bank.
        """
        placement = self.config.placement
        lanes = sum(map(min, placement.multipliers, placement.adders))
        tiles = (_WINDOWS + RESERVE) * self._form(work).tile_cycles
        return min(self.products(work) // lanes, tiles)

    @property
    def now(self) -> int:
        """Current cycle, extrapolated ones included."""
        return self._clock.now + self.skipped

    def advance(self, cycle: int) -> None:
        """Let time pass until ``cycle``, or until a work completes.

        More cycles pass if a longer repetition is extrapolated.
        """
        clock, works = self._clock, len(self._accepted)
        while len(self._accepted) == works and clock.next_cycle + self.skipped <= cycle:
            clock.step()
            self._events += 1
            if self._events >= USUAL_EVENTS and not self._events % _LOOK_EVENTS:
                self._look()
        if len(self._accepted) == works:
            clock.now = max(clock.now, cycle - self.skipped)

    def _look(self) -> None:
        """Extrapolate if the works go on at an even pace, and for long enough."""
        runs = [run for run in self._accepted if run.start is not None]
        counts = {
            bank.number: bank.counts
            for bank, owner in zip(self._banks, self._owner, strict=True)
            if owner is not None
        }
        done = [
            sum(bank.products for number, bank in counts.items() if self._owner[number] is run)
            for run in runs
        ]
        window, windows = _Window(self._clock.now, runs, counts, done), self._windows
        if windows and (windows[0].runs != runs or windows[0].counts.keys() != counts.keys()):
            windows.clear()
        if not windows:
            windows.append(window)
            return
        # Products in flight: a tile of each bank, or those dealt and not yet formed.
        flying = [
            max(1, run.total - run.tiles.left - formed, run.tiles.largest * self._owner.count(run))
            for run, formed in zip(runs, done, strict=True)
        ]
        if any(b - a < margin for a, b, margin in zip(windows[-1].done, done, flying, strict=True)):
            return
        windows.append(window)
        if len(windows) < _WINDOWS:
            return
        uneven = 0.0
        for number in range(len(runs)):
            paces = [
                (b.done[number] - a.done[number]) / (b.cycle - a.cycle)
                for a, b in pairwise(windows[1:])
            ]
            uneven = max(uneven, max(paces) / min(paces) - 1)
        if uneven > EVEN and len(windows) < _MOST_WINDOWS:
            return
        first = windows[1]
        span = window.cycle - first.cycle
        rates = [(b - a) / span for a, b in zip(first.done, done, strict=True)]
        cycles = min(
            (run.tiles.left - RESERVE * margin) / rate
            for run, margin, rate in zip(runs, flying, rates, strict=True)
        )
        if cycles < span:
            return
        for run, rate in zip(runs, rates, strict=True):
            lanes = self._banks[self._owner.index(run)].lane_count
            skipped = run.tiles.skip(int(cycles * rate), lanes)
            if len(runs) == 1:
                cycles = skipped / rate
        for bank, latest in counts.items():
            deltas = [b - a for a, b in zip(first.counts[bank], latest, strict=True)]
            self._banks[bank].add(Counts(*(round(delta * cycles / span) for delta in deltas)))
        self.skipped += round(cycles)
        windows.clear()

    def so_far(self, run: WorkRun) -> tuple[int, int, int]:
        """Return the beats read, the beats written and the products formed for a work.

        Some of those in flight are included.
        """
        busy = {
            bank.number: bank.counts
            for bank, owner in zip(self._banks, self._owner, strict=True)
            if owner is run
        }
        banks = (busy | run.banks).values()
        products = sum(bank.products for bank in banks)
        return (
            sum(bank.beats_read for bank in banks),
            sum(bank.beats_written for bank in banks),
            min(products, run.total),
        )

    def busy_cycles(self, bank: int, cycle: int) -> int:
        """Return the cycles in which a bank had a work; ``cycle`` is the current one."""
        since = cycle if self._owner[bank] is None else self._since[bank]
        return self._busy[bank] + max(0, cycle - since)

    def _start(self, cycle: int) -> None:
        """Give banks to works that can start, then to running ones, from ``cycle`` on.

        The oldest work is first.
        """
        self._events = 0
        reserved: set[int] = set()
        for age, run in enumerate(self._accepted):
            before = (other.work for other in self._accepted[:age])
            if run.start is not None:
                continue
            if None not in self._owner or any(map(run.work.conflicts_with, before)):
                cycle += PASS_CYCLES
                continue
            run.lacking = run.work.units
            run.start = self._take(run, reserved, cycle + CHOICE_CYCLES)
            if run.start is None:
                reserved |= set(named_banks(run.work))
            cycle = cycle + CHOICE_CYCLES if run.start is None else run.start + 1
        for run in self._accepted:
            if run.start is not None and run.lacking and not run.tiles.ended:
                start = self._take(run, reserved, cycle + GROWTH_CYCLES)
                cycle = cycle if start is None else start

    def _take(self, run: WorkRun, reserved: set[int], cycle: int) -> int | None:
        """Give banks to a work; return the cycle in which it has them, or None if it gets none.

        The choice ends in ``cycle``, plus a cycle for each bank if the pool chooses them.
        """
        free = [
            bank for bank, owner in enumerate(self._owner) if owner is None and bank not in reserved
        ]
        chosen = choose_banks(run.work, run.lacking, free, self._stack, self._units)
        if not chosen:
            return None
        cycle += 0 if run.work.banks else len(chosen)
        run.left += len(chosen)
        run.lacking = max(0, run.lacking - sum(self._units[bank] for bank in chosen))
        for bank in chosen:
            self._owner[bank] = run
            self._since[bank] = cycle
            self._banks[bank].start(run.tiles, cycle - self.skipped + START_TO_BANKS)
        return cycle

    def _done(self, bank: Bank, cycle: int) -> None:
        run = self._owner[bank.number]
        assert run is not None
        run.banks[bank.number] = bank.counts
        # Banks are counted in turn, one a cycle, but none when a work is accepted.
        ready = cycle + self.skipped + DONE_TO_TURN
        turn = ready + (bank.number - ready + self._offers) % self.config.banks
        run.counted = max(run.counted, turn)
        run.left -= 1
        if not run.left:
            end = run.counted + TURN_TO_COMPLETE
            self._clock.at(end - self.skipped, self._complete, run)

    def _complete(self, run: WorkRun) -> None:
        run.end = self.now
        self._accepted.remove(run)
        for bank in run.banks:
            self._busy[bank] += run.end - self._since[bank]
        self._owner = [None if owner is run else owner for owner in self._owner]
        self._start(run.end + COMPLETE_TO_CHOICE)
