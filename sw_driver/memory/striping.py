"""Where the bytes of an allocation are that is spread over several storages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["STRIPE_BYTES", "StripePart", "Striping"]

STRIPE_BYTES = 128 * 1024
"""Size of a stripe unit: what lies in one piece on a storage."""


@dataclass(frozen=True)
class StripePart:
    """What of a range is on one storage: one piece there, several in the range."""

    member: int
    """Which of the storages."""
    offset: int
    """From the start of the allocation's share of that storage on."""
    nbytes: int
    slices: Sequence[slice]
    """Of the range's bytes, in the order in which they lie on the storage."""


@dataclass(frozen=True)
class Striping:
    """Stripe unit n is on storage n modulo their number; on each the units follow without gaps.

    On a single storage everything is in one piece.
    """

    members: int
    """Number of storages."""
    nbytes: int
    """Size of the allocation, at least 1."""

    @property
    def unit_bytes(self) -> int:
        """Size of a stripe unit."""
        return STRIPE_BYTES if self.members > 1 else self.nbytes

    def bytes_before(self, end: int, member: int) -> int:
        """How many of the first ``end`` bytes are on storage ``member``."""
        rounds, rest = divmod(end, self.unit_bytes * self.members)
        within = min(max(rest - member * self.unit_bytes, 0), self.unit_bytes)
        return rounds * self.unit_bytes + within

    def parts(self, start: int, end: int) -> Iterator[StripePart]:
        """The parts of the bytes from ``start`` to ``end``, at most one on each storage."""
        unit_bytes = self.unit_bytes
        first_unit, end_unit = start // unit_bytes, -(-end // unit_bytes)
        for member in range(self.members):
            offset = self.bytes_before(start, member)
            nbytes = self.bytes_before(end, member) - offset
            if nbytes:
                first = first_unit + (member - first_unit) % self.members
                slices = [
                    slice(
                        max(unit * unit_bytes, start) - start,
                        min((unit + 1) * unit_bytes, end) - start,
                    )
                    for unit in range(first, end_unit, self.members)
                ]
                yield StripePart(member, offset, nbytes, slices)
