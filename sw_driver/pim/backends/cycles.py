"""Backend ``cycles``: time from the cycle model, and values, if any, from the golden model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from golden.pim import Cause, Descriptor
from hw.pim.config import BEAT_BYTES
from hw.pim.work.descriptor import TENSORS
from sw_driver.device.clock import Domain
from sw_driver.pim.planning import planned
from sw_driver.pim.transport import ACCESS_CYCLES, alone
from sw_driver.predict.pim import Pool, WorkRun

from .golden import GoldenPim

if TYPE_CHECKING:
    from hw.pim.config import PimConfig
    from sw_driver.pim.descriptor import Work

__all__ = ["CyclesPim"]

# Measured on RTL, in cycles.
ANSWER_CYCLES = 2
"""Cycles from the sampling of a register's value to the end of the access."""
RING_WRITE_CYCLES = 6
"""Cycles until all write requests of a descriptor are issued."""
RING_READ_CYCLES = 34
"""Cycles of the host's read of a completion that has just been written."""
FETCH_CYCLES = 47
"""Cycles from the write of a ring's head until the check of a descriptor just written."""
NEXT_FETCH_CYCLES = 37
"""Cycles from the end of a check until the check of a descriptor that is already in the ring."""
CHECK_CYCLES = 64
"""Cycles of the check of a descriptor."""
ACCEPT_CYCLES = 2
"""Cycles from the end of a descriptor's check until its work is accepted.

One more passes for each work that the pool can hold.
"""
REFUSE_CYCLES = 1
"""Cycles from the end of a descriptor's check until it is refused."""
NOTICE_CYCLES = 4
"""Cycles from a work's completion, or a descriptor's refusal, until its ring shows it."""


class CyclesPim(GoldenPim):
    """A :class:`~sw_driver.pim.transport.PimTransport` with the time of the cycle model.

    Works complete in the model's order, and their counters rise as the model's do. The model
    extrapolates long steady phases; :meth:`advance` may then pass more cycles than requested. The
    host's copies take no time.

    Parameters
    ----------
    config: configuration of the stack.
    computes: True for memory and results; else reads return zeros.
    shortened: two integers; the model follows only about their product in cycles of every longer
        tile, and the tile takes that time. By default it follows every tile in full.

    Examples
    --------
    >>> from hw.pim.config import PIM_PRESETS
    >>> from nearmem import Pim
    >>> transport = CyclesPim(PIM_PRESETS["tiny"])
    >>> with Pim(transport) as pim:
    ...     transport.advance(1000)
    ...     print(transport.cycles(), bin(pim.idle))
    1045 0b111111
    """

    name = "cycles"
    timed = True

    def __init__(
        self,
        config: PimConfig,
        *,
        computes: bool = True,
        shortened: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(config, computes=computes)
        self.domain = Domain(question_cycles=ACCESS_CYCLES)
        self._model = Pool(config, shortened=shortened)
        self._clock = 0
        self._runs: dict[int, WorkRun] = {}
        """Last accepted work of each slot."""
        self._running: dict[int, WorkRun] = {}
        self._checked: tuple[int, Descriptor, Cause] | None = None
        """Cycle when the checked descriptor is taken, its fields, and the cause of a refusal."""
        self._notices: list[tuple[int, Callable[[], None]]] = []
        """Pending writes to rings in order: the cycle of arrival, and the function that writes."""

    @alone
    def read_register(self, offset_bytes: int) -> int:
        """Read a register like :class:`GoldenPim`, and pass the access time."""
        self._pass(ACCESS_CYCLES - ANSWER_CYCLES)
        value = super().read_register(offset_bytes)
        self._pass(ANSWER_CYCLES)
        return value

    @alone
    def write_register(self, offset_bytes: int, value: int) -> None:
        """Write a register like :class:`GoldenPim`, after the access time."""
        self._pass(ACCESS_CYCLES)
        super().write_register(offset_bytes, value)

    @alone
    def read_memory(self, address_bytes: int, nbytes: int) -> NDArray[np.uint8]:
        """Read memory like :class:`GoldenPim`; only a ring's memory takes time."""
        if self._is_of_ring(address_bytes):
            self._pass(RING_READ_CYCLES)
        return super().read_memory(address_bytes, nbytes)

    @alone
    def post_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        """Write to a ring like :class:`GoldenPim`, after the time of the requests."""
        self._pass(RING_WRITE_CYCLES)
        super().post_memory(address_bytes, data)

    @alone
    def advance(self, cycles: int) -> None:
        """Advance the clock; see :class:`~sw_driver.pim.transport.PimTransport`."""
        self._step(self._clock + cycles)

    def _step(self, target: int) -> None:
        """Advance the clock to ``target``, or until a completion is in a ring."""
        is_notified = False
        while not is_notified:
            checked = self._checked
            if checked is not None and not self._has_place(checked):
                checked = None
            times = [at for at, _ in self._notices]
            until = min(target, *times, target if checked is None else checked[0])
            self._model.advance(until)
            if self._complete():
                continue
            self._clock = max(self._clock, until, self._model.now)
            if checked is not None and self._clock >= checked[0]:
                self._take(*checked)
            while self._notices and self._clock >= self._notices[0][0]:
                self._notices.pop(0)[1]()
                is_notified = True
            if self._clock >= target:
                return

    def followed_cycles(self, work: Work) -> int:
        """Estimate the cycles of a work that the model follows one by one.

        It follows 5,000 to 50,000 a second of host time, and extrapolates the rest.
        """
        return self._model.followed_cycles(self._descriptor_of(work))

    def products(self, work: Work) -> int:
        """Return the products of a work's tiles, or of the parts that the model follows."""
        return self._model.products(self._descriptor_of(work))

    def _descriptor_of(self, work: Work) -> Descriptor:
        return Descriptor.decode(planned(work, self.config).encode_bytes())

    def cycles(self) -> int:
        """Return the cycles that have passed."""
        self.domain.check_open()
        return self._clock

    def _pass(self, cycles: int) -> None:
        """Advance the clock by exactly ``cycles``, even if works complete meanwhile."""
        target = self._clock + cycles
        while self._clock < target:
            self._step(target)

    def _complete(self) -> bool:
        """Complete the works that the model has completed; return True if there was one."""
        done = {work_id: run for work_id, run in self._running.items() if run.end is not None}
        for work_id, run in sorted(done.items(), key=lambda item: item[1].end or 0):
            del self._running[work_id]
            self._clock = max(self._clock, run.end or 0)
            self._finish(work_id)
        return bool(done)

    def _finish(self, work_id: int) -> None:
        self._pool.finish(work_id)
        self._notify(lambda: self._rings.complete(work_id))
        self._grow()

    def _notify(self, write: Callable[[], None]) -> None:
        """Queue a write to a ring, behind the pending writes."""
        before = self._notices[-1][0] if self._notices else 0
        self._notices.append((max(self._clock, before) + NOTICE_CYCLES, write))

    def _serve(self, fetch_cycles: int = FETCH_CYCLES) -> None:
        if self._checked is not None or (raw := self._rings.fetch()) is None:
            return
        work, cause = self._check(raw)
        accept = ACCEPT_CYCLES + max(self.config.works, len(TENSORS))
        cycles = fetch_cycles + CHECK_CYCLES + (REFUSE_CYCLES if cause else accept)
        self._checked = self._clock + cycles, work, cause

    def _has_place(self, checked: tuple[int, Descriptor, Cause]) -> bool:
        """Return True if the checked descriptor is refused, or the pool has room for its work."""
        return bool(checked[2]) or self._pool.has_room

    def _take(self, _: int, work: Descriptor, cause: Cause) -> None:
        self._checked = None
        if cause:
            self._notify(self._rings.refuse(cause))
        else:
            work_id = self._accept(work)
            run = self._model.offer(work)
            self._running[work_id] = run
            self._runs[work_id % self.config.works] = run
        self._serve(NEXT_FETCH_CYCLES)

    def _dealt(self) -> set[int]:
        return {work_id for work_id, run in self._running.items() if run.tiles.ended}

    def _busy_cycles(self, bank: int) -> int:
        return self._model.busy_cycles(bank, self._clock) if bank < self.config.banks else 0

    def _slot_value(self, slot: int, name: str) -> int:
        value = super()._slot_value(slot, name)
        run = self._runs.get(slot)
        if run is None:
            return value
        read, written, products = self._model.so_far(run)
        match name:
            case "cycles":
                start = self._clock if run.start is None else run.start
                return max(0, (run.end or self._clock) - start)
            case "bytes_read":
                return BEAT_BYTES * read
            case "bytes_written":
                return BEAT_BYTES * written
            case "multiplications_left" | "additions_left" if run.end is None:
                return value - value * products // run.total
            case "multiplications_done" | "additions_done" if run.end is None:
                left = super()._slot_value(slot, name.replace("done", "left"))
                return left * products // run.total
            case _:
                return value
