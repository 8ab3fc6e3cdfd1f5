"""All banks of a stack, and the works that they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from golden.pim.descriptor import Descriptor
from golden.pim.pool import choose_banks, named_banks
from golden.pim.stack import StackMap

from .bank import Bank
from .config import PoolCycleConfig
from .course import Course
from .dispenser import Dispenser
from .form import Form, Tile, form_of
from .kernel import Kernel
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


@dataclass(eq=False)
class WorkRun:
    """A work that was offered to a pool."""

    work: Descriptor
    form: Form
    course: Course
    """Through its tiles, those that were dealt."""
    start: int | None = None
    end: int | None = None
    counted_before: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))
    """What was extrapolated of its counts, and all of them once it has completed."""
    lacking: int = 0
    """Units that it takes and that its banks do not have, if the pool chooses them."""
    left: int = 0
    """Banks that have not done their part."""
    counted: int = 0
    """When the last bank's part is counted."""


class Pool:
    """Gives works to banks as the hardware's scheduler does (docs/pim-spec.md, "The pool")."""

    def __init__(self, config: PoolCycleConfig) -> None:
        self.config = config
        self.kernel = kernel = Kernel()
        self._stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
        self.switch = Switch(kernel, config)
        self._dispenser = Dispenser(kernel, config.banks)
        self._banks = [
            Bank(
                kernel,
                self.switch,
                number,
                multipliers=multipliers,
                adders=adders,
                tiles=self._ask,
                lapped=self._lapped,
                done=self._done,
            )
            for number, (multipliers, adders) in enumerate(
                zip(config.multipliers, config.adders, strict=True)
            )
        ]
        self.skipped = 0
        """Cycles that were extrapolated."""
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
        form = form_of(work)
        run = WorkRun(work, form, Course(form.places))
        self._accepted.append(run)
        self._offers += 1
        self._start(self.now)
        return run

    @property
    def now(self) -> int:
        """The cycle."""
        return self.kernel.now + self.skipped

    def advance(self, cycle: int) -> None:
        """Lets time pass until ``cycle``, or until a work completes.

        More cycles pass if what goes on repeats for longer and is extrapolated.
        """
        kernel, works = self.kernel, len(self._accepted)
        while len(self._accepted) == works and kernel.next_cycle + self.skipped <= cycle:
            kernel.step()
            self._events += 1
        if len(self._accepted) == works:
            kernel.now = max(kernel.now, cycle - self.skipped)

    def _lapped(self) -> None:
        """Passes over what is alike if all works go on evenly, but for as much as was seen."""
        if self._events < USUAL_EVENTS:
            return
        courses: list[tuple[WorkRun, Course]] = []
        for run in self._accepted:
            if run.start is None:
                continue
            banks = [bank for bank in self._banks_of(run) if not bank.ended]
            if not banks:
                return
            long = run.form.long
            courses += [(run, bank.course) for bank in banks] if long else [(run, run.course)]
        if not all(course.even for _, course in courses):
            return
        longest = max(int(course.pace[0]) for _, course in courses)
        cycles = round(min(course.cycles_left for _, course in courses)) - longest
        if cycles > longest:
            self.skipped += cycles
            for run, course in courses:
                run.counted_before += course.skip(cycles)

    def _banks_of(self, run: WorkRun) -> list[Bank]:
        pairs = zip(self._banks, self._owner, strict=True)
        return [bank for bank, owner in pairs if owner is run]

    def _counts(self, run: WorkRun) -> NDArray[np.int64]:
        return run.counted_before + sum(bank.counts for bank in self._banks_of(run))

    def so_far(self, run: WorkRun) -> tuple[int, int, int]:
        """Beats read and written for a work, and products that were formed; of those in flight
        some."""
        read, written, products = map(int, self._counts(run))
        return read, written, min(products, run.form.total)

    def busy_cycles(self, bank: int, cycle: int) -> int:
        """Cycles before ``cycle``, which is now, in which a bank had a work."""
        since = cycle if self._owner[bank] is None else self._since[bank]
        return self._busy[bank] + max(0, cycle - since)

    def _start(self, cycle: int) -> None:
        """Gives banks to the works that can start, then to those that run, the oldest first, from
        ``cycle`` on."""
        self._events = 0
        reserved: set[int] = set()
        for run in self._accepted:
            run.course.laps.clear()
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
            if run.start is not None and run.lacking and run.course.left:
                start = self._take(run, reserved, cycle + GROWTH_CYCLES)
                cycle = cycle if start is None else start

    def _take(self, run: WorkRun, reserved: set[int], cycle: int) -> int | None:
        """Gives banks to a work, whose choice ends in ``cycle`` besides one for each; when it has
        them, if there are some for it."""
        free = [
            bank for bank, owner in enumerate(self._owner) if owner is None and bank not in reserved
        ]
        chosen = choose_banks(run.work, run.lacking, free, self._stack, self.config.units)
        if not chosen:
            return None
        cycle += 0 if run.work.banks else len(chosen)
        run.left += len(chosen)
        run.lacking = max(0, run.lacking - sum(self.config.units[bank] for bank in chosen))
        for bank in chosen:
            self._owner[bank] = run
            self._since[bank] = cycle
            self._banks[bank].start(run.form, cycle - self.skipped + START_TO_BANKS)
        return cycle

    def _ask(self, bank: Bank, cycle: int, deliver: Callable[[int, Tile | None], None]) -> None:
        run = self._owner[bank.number]
        assert run is not None
        if bank is self._banks_of(run)[0]:
            run.course.lap(cycle, self._counts(run))
            self._lapped()
        self._dispenser.ask(bank, run.form, run.course, cycle, deliver)

    def _done(self, bank: Bank, cycle: int) -> None:
        run = self._owner[bank.number]
        assert run is not None
        # Banks are counted in turn, one a cycle; when a work is accepted, none.
        ready = cycle + self.skipped + DONE_TO_TURN
        turn = ready + (bank.number - ready + self._offers) % self.config.banks
        run.counted = max(run.counted, turn)
        run.left -= 1
        if not run.left:
            end = run.counted + TURN_TO_COMPLETE
            self.kernel.at(end - self.skipped, self._complete, run)

    def _complete(self, run: WorkRun) -> None:
        run.end = self.now
        self._accepted.remove(run)
        run.counted_before = self._counts(run)
        for bank in self._banks_of(run):
            self._busy[bank.number] += run.end - self._since[bank.number]
        self._owner = [None if owner is run else owner for owner in self._owner]
        self._start(run.end + COMPLETE_TO_CHOICE)
