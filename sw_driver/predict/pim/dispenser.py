"""Dispenser of tiles to the banks that request them."""

from __future__ import annotations

from ..events import CycleClock
from .bank import Bank

__all__ = ["Dispenser"]

DEAL_CYCLES = 4
"""From a bank's request, or from the last tile, to a tile.

Lines that the last tile ended add to it.
"""


class Dispenser:
    """Server of tiles to the banks in turn."""

    def __init__(self, clock: CycleClock, banks: int) -> None:
        self._clock = clock
        self._banks = banks
        self._asking: dict[int, Bank] = {}
        self._free = 0
        self._last = -1
        self._scheduled = False

    def ask(self, bank: Bank) -> None:
        """Request one of its tiles for ``bank``, in the current cycle."""
        self._asking[bank.number] = bank
        if not self._scheduled:
            self._scheduled = True
            self._clock.late(self._free, self._pick)

    def _pick(self, _: object) -> None:
        now = self._clock.now
        number = min(self._asking, key=lambda number: (number - self._last - 1) % self._banks)
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
