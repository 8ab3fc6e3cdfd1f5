"""Gives tiles to the banks that ask."""

from __future__ import annotations

from collections.abc import Callable

from .bank import Bank, lanes_of
from .course import Course
from .form import Form, Tile
from .kernel import Kernel

__all__ = ["Dispenser"]

DEAL_CYCLES = 4
"""From a bank's asking, or from the last tile, to a tile, but for lines that the last one ended."""


class Dispenser:
    """Serves the banks that ask in turn."""

    def __init__(self, kernel: Kernel, banks: int) -> None:
        self._kernel = kernel
        self._banks = banks
        self._asking: dict[int, tuple[Bank, Form, Course, Callable[[int, Tile | None], None]]] = {}
        self._free = 0
        self._last = -1
        self._scheduled = False

    def ask(
        self,
        bank: Bank,
        form: Form,
        course: Course,
        cycle: int,
        deliver: Callable[[int, Tile | None], None],
    ) -> None:
        """``bank`` asks from ``cycle``, which is now, for the next one of ``course``."""
        self._asking[bank.number] = bank, form, course, deliver
        if not self._scheduled:
            self._scheduled = True
            self._kernel.late(max(cycle, self._free), self._pick)

    def _pick(self, _: object) -> None:
        now = self._kernel.now
        number = min(self._asking, key=lambda each: (each - self._last - 1) % self._banks)
        bank, form, course, deliver = self._asking.pop(number)
        self._last = number
        tile = None
        self._free = dealt = now + DEAL_CYCLES
        if course.left:
            tile = form.tile(course.place, lanes_of(form, bank.multipliers, bank.adders))
            course.place += tile.first_count
            ended = (tile.first + tile.first_count) // form.line
            if ended:
                self._free += 1 + (ended if course.place % form.extents[2] else 0)
        if self._asking:
            self._kernel.late(self._free, self._pick)
        else:
            self._scheduled = False
        deliver(dealt, tile)
