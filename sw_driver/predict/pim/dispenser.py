"""Gives tiles to the banks that ask."""

from __future__ import annotations

from ..events import Clock
from .bank import Bank

__all__ = ["Dispenser"]

DEAL_CYCLES = 4
"""From a bank's asking, or from the last tile, to a tile, but for lines that the last one ended."""


class Dispenser:
    """Serves the banks that ask for tiles in turn."""

    def __init__(self, clock: Clock, banks: int) -> None:
        self._clock = clock
        self._banks = banks
        self._asking: dict[int, Bank] = {}
        self._free = 0
        self._last = -1
        self._scheduled = False

    def ask(self, bank: Bank) -> None:
        """``bank`` asks, now, for one of its tiles."""
        self._asking[bank.number] = bank
        if not self._scheduled:
            self._scheduled = True
            self._clock.late(self._free, self._pick)

    def _pick(self, _: object) -> None:
        now = self._clock.now
        number = min(self._asking, key=lambda each: (each - self._last - 1) % self._banks)
        bank = self._asking.pop(number)
        self._last = number
        tile = bank.tiles.next(bank.lane_count)
        dealt = now + DEAL_CYCLES
        self._free = dealt + (bank.tiles.line_cycles if tile else 0)
        if self._asking:
            self._clock.late(self._free, self._pick)
        else:
            self._scheduled = False
        bank.deliver(dealt, tile)
