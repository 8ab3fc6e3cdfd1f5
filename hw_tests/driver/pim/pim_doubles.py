"""PIM transports that hold up, time or misstate the golden one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hw.pim.config import PimConfig
from hw.pim.registers.pool_registers import RINGS_OFFSET_BYTES, SLOT_BYTES, SLOTS_OFFSET_BYTES
from sw_driver.pim.backends.golden import GoldenPim
from sw_driver.pim.registers import ring_map, slot_map

__all__ = ["HEAD", "MisstatingPim", "RacingPim", "SlowCheckPim", "StuckPim", "TimedPim"]

HEAD = RINGS_OFFSET_BYTES + ring_map()["head"].offset_bytes
"""The register of the driver's ring that offers works."""


class StuckPim(GoldenPim):
    """Works start and never end."""

    name = "stuck"

    def __init__(self, config: PimConfig) -> None:
        super().__init__(config)
        self.waited_cycles = 0

    def advance(self, cycles: int) -> None:
        self.waited_cycles += cycles


class MisstatingPim(GoldenPim):
    """Says ``value`` in the register at ``offset_bytes``."""

    def __init__(self, config: PimConfig, *, offset_bytes: int, value: int) -> None:
        super().__init__(config)
        self._misstated = {offset_bytes: value}

    def read_register(self, offset_bytes: int) -> int:
        return self._misstated.get(offset_bytes, super().read_register(offset_bytes))


class SlowCheckPim(GoldenPim):
    """Takes three steps to check a work; until then its ring tells of the one before."""

    name = "slow"

    def __init__(self, config: PimConfig) -> None:
        super().__init__(config)
        self._steps_left = 0
        self._head = 0

    def write_register(self, offset_bytes: int, value: int) -> None:
        if offset_bytes == HEAD:
            assert not self._steps_left, "written while a work is being checked"
            self._steps_left, self._head = 3, value
        else:
            super().write_register(offset_bytes, value)

    def advance(self, cycles: int) -> None:
        if self._steps_left:
            self._steps_left -= 1
            if not self._steps_left:
                super().write_register(HEAD, self._head)


class TimedPim(GoldenPim):
    """Has a clock by which every work takes ``duration_cycles``, one after the other.

    ``spoil`` is called when a work has completed, with the transport.
    """

    name = "timed"
    timed = True
    duration_cycles = 1000

    def __init__(
        self, config: PimConfig, *, spoil: Callable[[TimedPim], None] | None = None
    ) -> None:
        super().__init__(config)
        self._now = 500
        self._spoil = spoil
        self._busy = [0] * config.banks

    def advance(self, cycles: int) -> None:
        before, idle = self._completed(), self._pool.idle
        super().advance(cycles)
        if self._completed() != before:
            self._now += self.duration_cycles
            for bank in range(self.config.banks):
                self._busy[bank] += self.duration_cycles * (1 - (idle >> bank & 1))
            if self._spoil is not None:
                self._spoil(self)

    def cycles(self) -> int:
        return self._now

    def _slot_value(self, slot: int, name: str) -> int:
        return self.duration_cycles if name == "cycles" else super()._slot_value(slot, name)

    def _busy_cycles(self, bank: int) -> int:
        return self._busy[bank]

    def _completed(self) -> list[Any]:
        state = slot_map()["state"].offset_bytes
        return [
            self.read_register(SLOTS_OFFSET_BYTES + SLOT_BYTES * slot + offset)
            for slot in range(self.config.works)
            for offset in (0, state)
        ]


class RacingPim(TimedPim):
    """Completes the oldest work in the moment in which another is offered."""

    name = "racing"

    def write_register(self, offset_bytes: int, value: int) -> None:
        if offset_bytes == HEAD:
            self.advance(1)
        super().write_register(offset_bytes, value)
