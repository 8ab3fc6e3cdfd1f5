"""All banks of a stack, and the works that they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from golden.pim.descriptor import Descriptor
from golden.pim.pool import choose_banks, named_banks
from golden.pim.stack import StackMap
from hw.pim.config import PimConfig
from sw_driver.numbers import check_integer

from ..events import Clock
from .bank import Bank, Counts
from .dispenser import Dispenser
from .form import Form, Tiles, form_of
from .switch import Switch

__all__ = ["Pool", "WorkRun"]

# Pipeline latencies, in cycles.
START_TO_BANKS = 1
"""From the cycle from which a work's cycles count until its banks start."""
DONE_TO_TURN = 1
"""From a bank's done until it is its turn to be counted, if it is."""
TURN_TO_COMPLETE = 2
"""From the turn of a work's last bank until the work completes."""
COMPLETE_TO_CHOICE = 2
"""From a work's completion until banks are chosen for others; from an acceptance at once."""
CHOICE_CYCLES = 3
"""To choose banks for a work that waits, besides one for each if the pool chooses; it starts then,
and a cycle later the next one has its turn."""
GROWTH_CYCLES = 4
"""The same for the first work that grows."""
PASS_CYCLES = 2
"""For a work that has to wait for another, or if no bank is idle."""


USUAL_EVENTS = 100_000
"""Events for which nothing is extrapolated."""
_LOOK_EVENTS = 2000
"""Between looks at how even works go on."""
_WINDOWS = 9
"""In a window each bank does a tile on average. The first one is not looked at. With half as many
the rate of one pass was off by 2 %."""
_MOST_WINDOWS = 12
EVEN = 0.01
"""By which two windows may differ, if they are not the last ones that are waited for."""
RESERVE = 2
"""Tiles of each bank that are left, to see how the work ends."""


class _Window(NamedTuple):
    """How far the works are."""

    cycle: int
    runs: list[WorkRun]
    counts: dict[int, Counts]
    """Of each bank at work."""
    done: list[int]
    """Products of each work that its banks at work have formed."""


@dataclass(eq=False)
class WorkRun:
    """A work that was offered to a pool."""

    work: Descriptor
    tiles: Tiles
    start: int | None = None
    end: int | None = None
    total: int = 0
    """Products."""
    banks: dict[int, Counts] = field(default_factory=dict, init=False)
    """What those did that have done their part, by number."""
    lacking: int = 0
    """Units that it takes and that its banks do not have, if the pool chooses them."""
    left: int = 0
    """Banks that have not done their part."""
    counted: int = 0
    """When the last bank's part is counted."""


class Pool:
    """Gives works to banks as the hardware's scheduler does (docs/pim-spec.md, "The pool").

    ``shortened``: of longer tiles about so many cycles, times the second number, are followed, and
    they take that time.
    """

    def __init__(self, config: PimConfig, *, shortened: tuple[int, int] | None = None) -> None:
        self.config = config
        for number in shortened or ():
            check_integer("shortened", number)
        self._shortened = shortened
        self._units = config.placement.units
        self._clock = clock = Clock()
        self._stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
        switch = Switch(clock, config)
        dispenser = Dispenser(clock, config.banks)
        self._banks = [
            Bank(clock, switch, config, number, ask=dispenser.ask, done=self._done)
            for number in range(config.banks)
        ]
        self.skipped = 0
        """Cycles that were extrapolated."""
        self._windows: list[_Window] = []
        self._events = 0
        """Since a work started or completed."""
        self._offers = 0
        self._owner: list[WorkRun | None] = [None] * config.banks
        self._since = [0] * config.banks
        """Since when each bank has its work."""
        self._busy = [0] * config.banks
        """Cycles for which each bank had the works that have completed."""
        self._accepted: list[WorkRun] = []

    def offer(self, work: Descriptor) -> WorkRun:
        """Accepts a good work, now."""
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
        """Products of a good work that are followed or extrapolated from followed tiles."""
        return Tiles(self._form(work)).left

    def followed_cycles(self, work: Descriptor) -> int:
        """About how many cycles of a good work, on all banks, are followed one by one: what is
        extrapolated are whole tiles, after some of each bank."""
        placement = self.config.placement
        lanes = sum(map(min, placement.multipliers, placement.adders))
        tiles = (_WINDOWS + RESERVE) * self._form(work).tile_cycles
        return min(self.products(work) // lanes, tiles)

    @property
    def now(self) -> int:
        """The cycle."""
        return self._clock.now + self.skipped

    def advance(self, cycle: int) -> None:
        """Lets time pass until ``cycle``, or until a work completes.

        More cycles pass if what goes on repeats for longer and is extrapolated.
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
        """Extrapolates if the works go on evenly, and for long enough."""
        runs = [run for run in self._accepted if run.start is not None]
        counts = {
            bank.number: bank.counts
            for bank, owner in zip(self._banks, self._owner, strict=True)
            if owner is not None
        }
        done = [
            sum(each.products for bank, each in counts.items() if self._owner[bank] is run)
            for run in runs
        ]
        window, windows = _Window(self._clock.now, runs, counts, done), self._windows
        if windows and (windows[0].runs != runs or windows[0].counts.keys() != counts.keys()):
            windows.clear()
        if not windows:
            windows.append(window)
            return
        # A tile of each bank, and what the banks have of tiles.
        flying = [
            max(1, run.total - run.tiles.left - each, run.tiles.largest * self._owner.count(run))
            for run, each in zip(runs, done, strict=True)
        ]
        if any(b - a < each for a, b, each in zip(windows[-1].done, done, flying, strict=True)):
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
            (run.tiles.left - RESERVE * each) / rate
            for run, each, rate in zip(runs, flying, rates, strict=True)
        )
        if cycles < span:
            return
        for run, rate in zip(runs, rates, strict=True):
            lanes = self._banks[self._owner.index(run)].lane_count
            skipped = run.tiles.skip(int(cycles * rate), lanes)
            if len(runs) == 1:
                cycles = skipped / rate
        for bank, now in counts.items():
            deltas = [b - a for a, b in zip(first.counts[bank], now, strict=True)]
            self._banks[bank].add(Counts(*(round(delta * cycles / span) for delta in deltas)))
        self.skipped += round(cycles)
        windows.clear()

    def so_far(self, run: WorkRun) -> tuple[int, int, int]:
        """Beats read and written for a work, and products that were formed; of those in flight
        some."""
        busy = {
            bank.number: bank.counts
            for bank, owner in zip(self._banks, self._owner, strict=True)
            if owner is run
        }
        banks = (busy | run.banks).values()
        products = sum(each.products for each in banks)
        return (
            sum(each.beats_read for each in banks),
            sum(each.beats_written for each in banks),
            min(products, run.total),
        )

    def busy_cycles(self, bank: int, cycle: int) -> int:
        """Cycles before ``cycle``, which is now, in which a bank had a work."""
        since = cycle if self._owner[bank] is None else self._since[bank]
        return self._busy[bank] + max(0, cycle - since)

    def _start(self, cycle: int) -> None:
        """Gives banks to the works that can start, then to those that run, the oldest first, from
        ``cycle`` on."""
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
        """Gives banks to a work, whose choice ends in ``cycle`` besides one for each; when it has
        them, if there are some for it."""
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
        # Banks are counted in turn, one a cycle; when a work is accepted, none.
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
