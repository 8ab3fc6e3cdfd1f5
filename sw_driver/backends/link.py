"""The host link's time, shared by the channels of a module."""

from __future__ import annotations

import threading
from bisect import bisect_right

__all__ = ["HostLink"]

REMEMBERED_USES = 256


class HostLink:
    """Hands out stretches of time, of which no two overlap. Any thread may ask.

    A channel may ask for an earlier time than another has used already; what lies so far back that
    it is not remembered is taken to have been in use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Disjoint uses in the order of time: starts and ends go together.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._remembered_from = 0

    def reserve(self, not_before: int, fabric_cycles: int) -> int:
        """Reserves the first free stretch of that length and returns its start."""
        with self._lock:
            start = max(not_before, self._remembered_from)
            index = bisect_right(self._ends, start)
            while index < len(self._starts) and self._starts[index] < start + fabric_cycles:
                start = self._ends[index]
                index += 1
            end = start + fabric_cycles
            if index and self._ends[index - 1] == start:
                self._ends[index - 1] = end
            else:
                self._starts.insert(index, start)
                self._ends.insert(index, end)
                index += 1
            if index < len(self._starts) and self._starts[index] == end:
                del self._starts[index], self._ends[index - 1]
            if len(self._starts) > REMEMBERED_USES:
                self._remembered_from = self._ends[0]
                del self._starts[0], self._ends[0]
            return start
