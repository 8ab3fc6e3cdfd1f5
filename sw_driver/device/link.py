"""Links that operations share, and the simulated time of transfers over them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite

from .clock import Awaited

__all__ = [
    "LINK_FABRIC_CYCLES_PER_LINE",
    "Leg",
    "LinkTiming",
    "ReservedLink",
    "first_free_together",
]

LINK_FABRIC_CYCLES_PER_LINE = 2
"""Fabric cycles of a 64-byte line on the AXDIMM's host link.

DDR4-800 at 64 bits moves 32 bytes in a cycle of 200 MHz.
"""

REMEMBERED_USES = 256
_NEVER = 1 << 62


class ReservedLink:
    """Reservations of a link, such as the host link, a GPU's link or an NVMe device.

    Reservations never overlap. A caller may ask for a time before earlier reservations. Time before
    the oldest remembered reservation counts as in use. Times are whole cycles of the link's device.

    Parameters
    ----------
    name: name of the link's track in a timeline.

    Examples
    --------
    >>> link = ReservedLink()
    >>> link.reserve(10, 100), link.reserve(0, 100), link.reserve(0, 10)
    (10, 110, 0)
    >>> link.first_free(0, 5)
    210
    """

    def __init__(self, name: str = "host link") -> None:
        self.name = name
        self.last: Awaited | None = None
        """The last operation that uses the link in queue order."""
        # Disjoint reservations in order of time: equal indices belong together.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._remembered_from = 0

    def reserve(self, not_before: int, duration: int) -> int:
        """Reserve the first free stretch of ``duration`` and return its start."""
        start = self.first_free(not_before, duration)
        self._take(start, start + duration)
        return start

    def grant(self, not_before: int, duration: int, count: int) -> tuple[int, int]:
        """Reserve up to ``count`` consecutive stretches of ``duration``.

        The first gap that holds one stretch decides how many. Returns their start and number.
        """
        start = self.first_free(not_before, duration)
        index = bisect_right(self._starts, start)
        free_until = self._starts[index] if index < len(self._starts) else _NEVER
        granted = min(count, (free_until - start) // duration)
        self._take(start, start + granted * duration)
        return start, granted

    def first_free(self, not_before: int, duration: int) -> int:
        """Return the start of the first free stretch of ``duration``."""
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


def first_free_together(durations: Mapping[ReservedLink, int], not_before: int) -> int:
    """Return the first time at which every link is free for its duration."""
    start = not_before
    while True:
        free = max(
            (link.first_free(start, duration) for link, duration in durations.items()),
            default=start,
        )
        if free == start:
            return start
        start = free


@dataclass(frozen=True)
class Leg:
    """A link that a transfer occupies, and for how long; all legs of a transfer begin together."""

    link: ReservedLink
    duration_ns: float


@dataclass(frozen=True, kw_only=True)
class LinkTiming:
    """Latency and rates of transfers: a transfer takes the latency plus its bytes over the rate.

    Raises ``ValueError`` unless rates are above 0, the latency is at least 0, and all are finite.

    Examples
    --------
    >>> timing = LinkTiming(read_gb_per_s=4, write_gb_per_s=2, latency_us=10)
    >>> [timing.duration_ns(1_000_000, writing=writing) for writing in (False, True)]
    [260000.0, 510000.0]
    >>> LinkTiming(read_gb_per_s=0, write_gb_per_s=2, latency_us=10)
    Traceback (most recent call last):
        ...
    ValueError: read_gb_per_s is 0: expected a finite number above 0
    """

    read_gb_per_s: float
    """Rate from the device, in 10^9 bytes a second."""
    write_gb_per_s: float
    """Rate to the device, in 10^9 bytes a second."""
    latency_us: float
    """Time from the call to the first byte, in microseconds, once for each transfer."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), "above 0"
            fits = isinstance(value, int | float) and isfinite(value) and value > 0
            if field.name == "latency_us":
                fits, least = fits or value == 0, "at least 0"
            if not fits:
                raise ValueError(f"{field.name} is {value!r}: expected a finite number {least}")

    def duration_ns(self, nbytes: int, *, writing: bool) -> float:
        """Return the time of a transfer in ns, to the device if ``writing``, else from it."""
        rate_gb_per_s = self.write_gb_per_s if writing else self.read_gb_per_s
        return 1e3 * self.latency_us + nbytes / rate_gb_per_s
