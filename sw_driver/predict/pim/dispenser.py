"""Cuts a work into tiles and gives them to the banks that ask."""

from __future__ import annotations

from collections.abc import Callable

from ..events import Clock
from .bank import Bank, Tile, lanes_of
from .form import Form

__all__ = ["Dispenser", "Tiles"]

DEAL_CYCLES = 4
"""From a bank's asking, or from the last tile, to a tile, but for lines that the last one ended."""


class Tiles:
    """What is left of a work: first vectors fastest, then second ones, outer1, outer2."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._first = self._second = self._outer1 = self._outer2 = 0
        self.largest = 0
        """Products of the largest tile that was dealt."""
        self.line_cycles = 0
        """What the next tile waits for because of the lines that the last one ended."""
        self.ended = False

    @property
    def left(self) -> int:
        """Products, or elements, of the tiles that are not dealt."""
        outer1, outer2, first, second = self._form.extents
        if self.ended:
            return 0
        planes = outer1 * (outer2 - self._outer2) - self._outer1
        rest = planes * first * second - self._second * first
        seconds = min(1 << self._form.plan.seconds, second - self._second)
        return (rest - self._first * seconds) * self._form.products

    def skip(self, products: int, multipliers: int, adders: int) -> int:
        """Passes over tiles of about so many products, as for a bank with these units; returns
        how many they are. At least one tile is left."""
        outer1, _, first, second = self._form.extents
        before = self.left
        plane = first * second * self._form.products
        planes = max(0, products // plane - 1)
        self._outer2, self._outer1 = divmod(self._outer2 * outer1 + self._outer1 + planes, outer1)
        while before - self.left < products:
            state = self._first, self._second, self._outer1, self._outer2
            self.next(multipliers, adders)
            if self.ended:
                self._first, self._second, self._outer1, self._outer2 = state
                self.ended = False
                break
        return before - self.left

    def next(self, multipliers: int, adders: int) -> Tile | None:
        """The next tile for a bank with these units, or None at the end."""
        if self.ended:
            return None
        form = self._form
        outer1, outer2, first, second = form.extents
        limit = self._limit(lanes_of(form, multipliers, adders))
        seconds = 1 << form.plan.seconds
        line, in_line = divmod(self._first, form.line)
        tile = Tile(
            self._outer1 + line,
            self._outer2,
            in_line,
            min(limit, first - self._first),
            self._second,
            min(seconds, second - self._second),
        )
        size = tile.first_count * tile.second_count * form.products
        self.largest = max(self.largest, size)
        self._first += limit
        self.line_cycles = 0
        if in_line + limit >= form.line:
            passed = self._first // form.line - line
            self.line_cycles = 1 + (passed if self._first < first else 0)
        if self._first >= first:
            self._first = 0
            self._second += seconds
            if self._second >= second:
                self._second = 0
                self._outer1 += 1
                if self._outer1 == outer1:
                    self._outer1 = 0
                    self._outer2 += 1
                    self.ended = self._outer2 == outer2
        return tile

    def _limit(self, lanes: int) -> int:
        """The most first vectors of the next tile for a bank with so many lanes."""
        form = self._form
        if form.elementwise:
            return 1 << form.plan.chunk
        vectors = 1 << form.plan.depth
        if form.plan.seconds >= 3:
            # A power of two, so that with second vectors they fill a lane's turns.
            needed = -(-(form.extents[2] - self._first) // lanes)
            vectors = min(vectors, 1 << needed.bit_length() - 1)
        return lanes * vectors


class Dispenser:
    """Serves the banks that ask in turn."""

    def __init__(self, clock: Clock, banks: int) -> None:
        self._clock = clock
        self._banks = banks
        self._asking: dict[int, tuple[Bank, Tiles, Callable[[int, Tile | None], None]]] = {}
        self._free = 0
        self._last = -1
        self._scheduled = False

    def ask(
        self, bank: Bank, tiles: Tiles, cycle: int, deliver: Callable[[int, Tile | None], None]
    ) -> None:
        """``bank`` asks from ``cycle``, which is now, for one of ``tiles``."""
        self._asking[bank.number] = bank, tiles, deliver
        if not self._scheduled:
            self._scheduled = True
            self._clock.late(max(cycle, self._free), self._pick)

    def _pick(self, _: object) -> None:
        now = self._clock.now
        number = min(self._asking, key=lambda each: (each - self._last - 1) % self._banks)
        bank, tiles, deliver = self._asking.pop(number)
        self._last = number
        tile = tiles.next(bank.multipliers, bank.adders)
        dealt = now + DEAL_CYCLES
        self._free = dealt + (tiles.line_cycles if tile else 0)
        if self._asking:
            self._clock.late(self._free, self._pick)
        else:
            self._scheduled = False
        deliver(dealt, tile)
