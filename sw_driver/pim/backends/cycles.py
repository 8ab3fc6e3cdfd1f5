"""The backend ``cycles``: time from the cycle model, values, if any, from the golden model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from golden.cycles.pim import Pool, PoolCycleConfig, WorkRun
from golden.pim import Cause, Descriptor
from golden.pim.vault_timing import VAULT_TABLES
from hw.pim.config import BEAT_BYTES
from sw_driver.pim.planning import planned

from .golden import GoldenPim

if TYPE_CHECKING:
    from hw.pim.config import PimConfig
    from sw_driver.pim.descriptor import Work

__all__ = ["CyclesPim", "pool_cycle_config"]

# Measured on RTL, in cycles.
ACCESS_CYCLES = 3
"""Of a register."""
CHECK_CYCLES = 72
"""Of a descriptor."""
ACCEPT_CYCLES = 2
"""From the end of a descriptor's check until its work is accepted, besides one for each work that
the pool holds."""


def pool_cycle_config(config: PimConfig) -> PoolCycleConfig:
    """What the cycle model knows of a stack."""
    return PoolCycleConfig(
        multipliers=tuple(config.placement.multipliers),
        adders=tuple(config.placement.adders),
        bank_bytes=config.bank_bytes,
        vault=VAULT_TABLES["hmc2"],
    )


class CyclesPim(GoldenPim):
    """A :class:`~sw_driver.pim.transport.PimTransport` with the time of the cycle model.

    Works complete in the model's order; a work's counters go up meanwhile as the model's do. What
    goes on evenly for long is extrapolated, and then :meth:`advance` may let more time pass than it
    is asked for. The host's copies take no time.

    Parameters
    ----------
    config: the stack.
    computes: whether there are memory and results; else reads give zeros.
    shortened: of longer tiles about so many cycles, times the second number, are followed, and they
        take that time. By default all of every tile.
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
        self._model = Pool(pool_cycle_config(config), shortened=shortened)
        self._clock = 0
        self._runs: dict[int, WorkRun] = {}
        """The last work of each slot, once its check has ended."""
        self._running: dict[int, WorkRun] = {}
        self._checked: tuple[int, Descriptor] | None = None
        """When the work that is being checked is accepted, and what it is."""

    def read_register(self, offset_bytes: int) -> int:
        """As of :class:`GoldenPim`."""
        self._pass(ACCESS_CYCLES)
        return super().read_register(offset_bytes)

    def write_register(self, offset_bytes: int, value: int) -> None:
        """As of :class:`GoldenPim`."""
        self._pass(ACCESS_CYCLES)
        super().write_register(offset_bytes, value)

    def advance(self, cycles: int) -> None:
        """See :class:`~sw_driver.pim.transport.PimTransport`."""
        target = self._clock + cycles
        until = target if self._checked is None else min(target, self._checked[0])
        self._model.advance(until)
        if not self._complete():
            self._clock = max(until, self._model.now)
        if self._checked is not None and self._clock >= self._checked[0]:
            work = self._checked[1]
            self._checked = None
            self._accept(work)
            if self._cause == Cause.NONE:
                run = self._model.offer(work)
                self._running[self._last_id] = run
                self._runs[self._last_id % self.config.works] = run
            self.advance(max(0, target - self._clock))

    def followed_cycles(self, work: Work) -> int:
        """About how many cycles of a work are followed one by one, five to fifty thousand a second
        of host time; the rest is extrapolated."""
        return self._model.followed_cycles(self._descriptor_of(work))

    def products(self, work: Work) -> int:
        """Products of a work, or those of its tiles as far as they are followed."""
        return self._model.products(self._descriptor_of(work))

    def _descriptor_of(self, work: Work) -> Descriptor:
        return Descriptor.decode(planned(work, self.config).encode_bytes())

    def cycles(self) -> int:
        """Cycles that have passed."""
        return self._clock

    def _pass(self, cycles: int) -> None:
        """Lets exactly so much time pass, whatever completes."""
        target = self._clock + cycles
        while self._clock < target:
            self.advance(target - self._clock)

    def _complete(self) -> bool:
        """Completes the works that the model has completed; whether there was one."""
        done = {work_id: run for work_id, run in self._running.items() if run.end is not None}
        for work_id, run in sorted(done.items(), key=lambda item: item[1].end or 0):
            del self._running[work_id]
            self._finish(work_id)
            self._clock = max(self._clock, run.end or 0)
        return bool(done)

    def _submit(self) -> None:
        work = self._check()
        if work is None:
            return
        check = CHECK_CYCLES + ACCEPT_CYCLES + max(self.config.works, 4)
        self._checked = self._clock + check, work

    def _dealt(self) -> set[int]:
        return {work_id for work_id, run in self._running.items() if run.tiles.ended}

    def _busy_cycles(self, bank: int) -> int:
        return self._model.busy_cycles(bank, self._clock) if bank < self.config.banks else 0

    def _pool_fields(self, name: str) -> dict[str, int]:
        if name == "status":
            return {"busy": int(self._checked is not None)}
        return super()._pool_fields(name)

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
