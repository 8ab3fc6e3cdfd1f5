"""What several operations share, and when: links, and how long transfers over them take."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite

from .clock import Awaited

__all__ = ["LINK_FABRIC_CYCLES_PER_LINE", "Leg", "Link", "LinkTiming", "first_free_together"]

LINK_FABRIC_CYCLES_PER_LINE = 2
"""What a line of 64 bytes takes of the AXDIMM's host link: DDR4-800 at 64 bits moves 32 bytes a
cycle of 200 MHz."""

REMEMBERED_USES = 256
_NEVER = 1 << 62


class Link:
    """A list of reserved stretches of time, of which no two overlap: the host link, that of a GPU,
    an NVMe device.

    Who asks may ask for an earlier time than another has used already; what lies so far back that
    it is not remembered is taken to have been in use. Times are integers, cycles of the device that
    the link belongs to.

    Parameters
    ----------
    name: name of its track in a timeline.
    """

    def __init__(self, name: str = "host link") -> None:
        self.name = name
        self.last: Awaited | None = None
        """The last of the operations that have the link one after the other."""
        # Disjoint uses in the order of time: starts and ends go together.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._remembered_from = 0

    def reserve(self, not_before: int, duration: int) -> int:
        """Reserves the first free stretch of that length and returns its start."""
        start = self.first_free(not_before, duration)
        self._take(start, start + duration)
        return start

    def grant(self, not_before: int, duration: int, count: int) -> tuple[int, int]:
        """Reserves up to ``count`` stretches of ``duration`` in a row, as many as the first free
        place has room for; returns where they start, and how many they are."""
        start = self.first_free(not_before, duration)
        index = bisect_right(self._starts, start)
        free_until = self._starts[index] if index < len(self._starts) else _NEVER
        granted = min(count, (free_until - start) // duration)
        self._take(start, start + granted * duration)
        return start, granted

    def first_free(self, not_before: int, duration: int) -> int:
        """The start of the first free stretch of that length."""
        start = max(not_before, self._remembered_from)
        index = bisect_right(self._ends, start)
        while index < len(self._starts) and self._starts[index] < start + duration:
            start = self._ends[index]
            index += 1
        return start

    def _take(self, start: int, end: int) -> None:
        index = bisect_right(self._ends, start)
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


def first_free_together(durations: Mapping[Link, int], not_before: int) -> int:
    """The first time from which a stretch of each link is free."""
    start = not_before
    while True:
        free = max(
            (each.first_free(start, duration) for each, duration in durations.items()),
            default=start,
        )
        if free == start:
            return start
        start = free


@dataclass(frozen=True)
class Leg:
    """What a transfer occupies, and for how long; all legs of a transfer begin at once."""

    link: Link
    duration_ns: float


@dataclass(frozen=True, kw_only=True)
class LinkTiming:
    """A transfer takes the latency, and then its bytes at the rate.

    Raises ``ValueError`` for a rate that is not above 0, a latency below 0, or either not finite.
    """

    read_gb_per_s: float
    """Rate from the device, in 10^9 bytes a second."""
    write_gb_per_s: float
    """Rate to the device, in 10^9 bytes a second."""
    latency_us: float
    """Microseconds from the call to the first byte, once a transfer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), "above 0"
            fits = isinstance(value, int | float) and isfinite(value) and value > 0
            if field.name == "latency_us":
                fits, least = fits or value == 0, "at least 0"
            if not fits:
                raise ValueError(f"{field.name} is {value!r}: expected a finite number {least}")

    def duration_ns(self, nbytes: int, *, writing: bool) -> float:
        """Nanoseconds of a transfer of ``nbytes`` from or, ``writing``, to the device."""
        rate_gb_per_s = self.write_gb_per_s if writing else self.read_gb_per_s
        return 1e3 * self.latency_us + nbytes / rate_gb_per_s
