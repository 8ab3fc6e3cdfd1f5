"""Rings of descriptors in a stack's memory (docs/pim-spec.md, "Rings")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .descriptor import DESCRIPTOR_BYTES, Cause

__all__ = ["Memory", "Ring", "Rings"]

_SLOT_BYTES = 256
_COUNTS = 1 << 16


class Memory(Protocol):
    """Memory that holds the rings."""

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the bytes from ``address`` on."""
        ...

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """Write bytes from ``address`` on."""
        ...


@dataclass
class Ring:
    """Registers of a ring."""

    base: int = 0
    size: int = 0
    head: int = 0
    tail: int = 0
    cause: Cause = Cause.NONE
    id: int = 0
    completions: int = 0
    completed_id: int = 0
    pending: bool = False
    enable: bool = False

    def address(self, count: int) -> int:
        """Return the address of the slot for descriptor or completion ``count``."""
        slots = 1 << self.size
        return _SLOT_BYTES * (self.base // slots * slots + count % slots)

    @property
    def region(self) -> range:
        """Byte addresses of the ring."""
        return range(self.address(0), self.address(0) + (_SLOT_BYTES << self.size))


class Rings:
    """Rings that fetch descriptors and write completions; their masters write the registers.

    Examples
    --------
    >>> from golden.pim.pool import Pool
    >>> rings = Rings(2, Pool(multipliers=[2], adders=[2], bank_bytes=1 << 15))
    >>> rings.rings[0].base, rings.rings[0].size = 16, 2
    >>> rings.rings[0].head = 1
    >>> len(rings.fetch())
    192
    """

    def __init__(self, count: int, memory: Memory) -> None:
        self.rings = [Ring() for _ in range(count)]
        self._memory = memory
        self._turn = 0
        self._origins: dict[int, tuple[Ring, int]] = {}
        """Ring and descriptor number of each work that has not completed, by the work's id."""

    def fetch(self) -> bytes | None:
        """Return the next descriptor, from the rings in turn, or None.

        It must be accepted or refused before the next call.
        """
        count = len(self.rings)
        turns = ((self._turn + step) % count for step in range(1, count + 1))
        waiting = (turn for turn in turns if self.rings[turn].head != self.rings[turn].tail)
        self._turn = next(waiting, self._turn)
        ring = self.rings[self._turn]
        if ring.head == ring.tail:
            return None
        return self._memory.read(ring.address(ring.tail), DESCRIPTOR_BYTES).tobytes()

    def accept(self, work_id: int) -> None:
        """Register the descriptor's acceptance as the work ``work_id``."""
        ring = self.rings[self._turn]
        self._origins[work_id] = ring, ring.tail
        ring.id = work_id
        self._take(Cause.NONE)

    def refuse(self, cause: Cause) -> Callable[[], None]:
        """Register the descriptor's refusal; return a function that writes its completion."""
        ring = self.rings[self._turn]
        descriptor = ring.tail
        self._take(cause)
        return partial(self._write, ring, descriptor, 0, cause)

    def complete(self, work_id: int) -> None:
        """Write a work's completion to its ring; the ring's interrupt becomes pending."""
        self._write(*self._origins.pop(work_id), work_id, Cause.NONE)

    def _take(self, cause: Cause) -> None:
        ring = self.rings[self._turn]
        ring.cause = cause
        ring.tail = (ring.tail + 1) % _COUNTS

    def _write(self, ring: Ring, descriptor: int, work_id: int, cause: Cause) -> None:
        place = ring.address(ring.completions) + DESCRIPTOR_BYTES
        ring.completions = (ring.completions + 1) % _COUNTS
        words = ring.completions | descriptor << 16, work_id, int(cause)
        self._memory.write(place, np.array(words, "<u4").view(np.uint8))
        ring.completed_id, ring.pending = work_id, True
