"""A set of byte ranges."""

from __future__ import annotations

__all__ = ["Intervals"]


class Intervals:
    """A set of integers, kept as ranges ``[start, end)``. Not safe for threads."""

    def __init__(self) -> None:
        # Ascending; no two touch.
        self._ranges: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Puts a range, which is not empty, into the set."""
        apart = []
        for low, high in self._ranges:
            if high < start or end < low:
                apart.append((low, high))
            else:
                start, end = min(start, low), max(end, high)
        self._ranges = sorted([*apart, (start, end)])

    def remove(self, start: int, end: int) -> None:
        """Takes a range out of the set."""
        rests = [
            rest
            for low, high in self._ranges
            for rest in ((low, min(high, start)), (max(low, end), high))
        ]
        self._ranges = [(low, high) for low, high in rests if low < high]

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The ranges of the set's integers in ``[start, end)``, ascending."""
        inside = [(max(low, start), min(high, end)) for low, high in self._ranges]
        return [(low, high) for low, high in inside if low < high]
