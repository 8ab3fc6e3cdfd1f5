"""Where the bytes of an allocation are that is spread over several storages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sw_driver.memory.storage import Storage

__all__ = ["STRIPE_BYTES", "Part", "Striping", "share_bytes"]

STRIPE_BYTES = 128 * 1024
"""Size of a stripe unit: what lies in one piece on a storage."""


@dataclass(frozen=True)
class Part:
    """What of a range is on one storage: one piece there, several in the range."""

    storage: Storage
    offset: int
    """On the storage."""
    nbytes: int
    slices: Sequence[slice]
    """Of the range's bytes, in the order in which they lie on the storage."""

    def read(self) -> NDArray[np.uint8]:
        """The part's bytes."""
        return self.storage.read(self.offset, self.nbytes)

    def fill(self, destination: NDArray[np.uint8], data: NDArray[np.uint8]) -> None:
        """Puts what :meth:`read` returned where it belongs in the range."""
        position = 0
        for each in self.slices:
            piece = destination[each]
            piece[:] = data[position : position + piece.size]
            position += piece.size

    def write(self, source: NDArray[np.uint8]) -> None:
        """Writes what of the range's bytes, ``source``, belongs here."""
        self.storage.write(self.offset, [source[each] for each in self.slices])


@dataclass(frozen=True)
class Striping:
    """Stripe unit n is on storage n modulo their number; on each the units follow without gaps."""

    shares: Sequence[tuple[Storage, int]]
    """The storages, and the address of the allocation's share on each."""

    def parts(self, start: int, end: int) -> Iterator[Part]:
        """The parts of the allocation's bytes from ``start`` to ``end``, one on each storage."""
        members = len(self.shares)
        first_unit, end_unit = start // STRIPE_BYTES, -(-end // STRIPE_BYTES)
        for member, (storage, address) in enumerate(self.shares):
            offset = share_bytes(start, member, members)
            nbytes = share_bytes(end, member, members) - offset
            if nbytes:
                units = range(first_unit + (member - first_unit) % members, end_unit, members)
                slices = [
                    slice(
                        max(unit * STRIPE_BYTES, start) - start,
                        min((unit + 1) * STRIPE_BYTES, end) - start,
                    )
                    for unit in units
                ]
                yield Part(storage, address + offset, nbytes, slices)


def share_bytes(end: int, member: int, members: int) -> int:
    """How many of the first ``end`` bytes are on storage ``member`` of ``members``."""
    rounds, rest = divmod(end, STRIPE_BYTES * members)
    return rounds * STRIPE_BYTES + min(max(rest - member * STRIPE_BYTES, 0), STRIPE_BYTES)
