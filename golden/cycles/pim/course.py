"""What goes on evenly, so that it need not all be followed."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

__all__ = ["LAPS", "Course"]

LAPS = 14
"""After which is extrapolated."""
_FIRST = 4
"""Of these that fill buffers."""


class Course:
    """A way through ``places`` that are much alike: of a work's tiles, or of a tile's chunks, which
    are alike after ``period`` of them."""

    def __init__(self, places: int, period: int = 1) -> None:
        self.place = 0
        self.places = places
        self.period = period
        self.laps: deque[NDArray[np.int64]] = deque(maxlen=LAPS + 1)
        """Cycle, place, and what had been counted."""

    @property
    def left(self) -> int:
        """Places to come."""
        return self.places - self.place

    def lap(self, cycle: int, counts: NDArray[np.int64]) -> None:
        """Notes where it is in ``cycle``."""
        self.laps.append(np.array([cycle, self.place, *counts]))

    @property
    def even(self) -> bool:
        """Whether it has had enough laps."""
        return len(self.laps) > LAPS

    @property
    def pace(self) -> NDArray[np.int64]:
        """Cycles, places and counts of the last laps."""
        return self.laps[-1] - self.laps[_FIRST]

    @property
    def cycles_left(self) -> float:
        """How long the places to come take at this pace."""
        return self.left * self.pace[0] / self.pace[1]

    def skip(self, cycles: int) -> NDArray[np.int64]:
        """Goes on as in so many cycles; returns what is counted meanwhile."""
        gone = np.rint(self.pace * (cycles / self.pace[0])).astype(np.int64)
        self.place += round(gone[1] / self.period) * self.period
        self.laps.clear()
        return gone[2:]
