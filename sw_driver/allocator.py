"""Memory of one channel: first fit with coalescing, tensors staggered over the banks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .errors import InvalidSizeError, OutOfMemoryError
from .transport import LINE_BYTES

__all__ = ["BANK_BLOCK_BYTES", "BANK_SLOTS", "SLOT_STRIDE", "ChannelAllocator"]

BANK_BLOCK_BYTES = 16 * 1024
"""An aligned block of this size lies in one pair of banks (two rows in two bank groups)."""

BANK_SLOTS = 8
"""Consecutive blocks cycle through this many pairs of banks, which are all of a channel."""

SLOT_STRIDE = 2
"""Slots from one staggered tensor to the next.

A run loads block k of its four tensors and stores block k-1 of three. With the tensors two slots
apart the loads lie in slots of one parity and the stores in slots of the other, so that no two of
the seven meet in a bank.
"""


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class ChannelAllocator:
    """Hands out ranges of ``[0, limit_bytes)``.

    Sizes are rounded up to 64-byte lines, so that no two allocations share a line. Allocations of
    :data:`BANK_BLOCK_BYTES` or more start on a bank block and, with ``stagger``, each
    :data:`SLOT_STRIDE` slots after the one before it, where space allows; when it does not, any
    place will do, so staggering never causes an allocation to fail.

    Not safe for use by several threads at once; the driver holds the channel's lock.
    """

    def __init__(self, *, limit_bytes: int, stagger: bool = True) -> None:
        if limit_bytes < LINE_BYTES or limit_bytes % LINE_BYTES:
            raise ValueError(
                f"limit_bytes is {limit_bytes}, expected a positive multiple of {LINE_BYTES}"
            )
        self._limit_bytes = limit_bytes
        self._stagger = stagger
        self._next_slot = 0
        # Free ranges, disjoint, not adjacent and sorted: starts and ends go together.
        self._starts = [0]
        self._ends = [limit_bytes]
        self._sizes: dict[int, int] = {}

    @property
    def limit_bytes(self) -> int:
        """Bytes that can be allocated when nothing is."""
        return self._limit_bytes

    @property
    def stagger(self) -> bool:
        """Whether large allocations rotate over the bank slots."""
        return self._stagger

    @property
    def allocations(self) -> dict[int, int]:
        """Bytes, rounded up to lines, of each allocation by its address."""
        return dict(self._sizes)

    @property
    def free_ranges(self) -> list[tuple[int, int]]:
        """Free ranges ``(start, end)`` in ascending order; no two touch."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def free_bytes(self) -> int:
        """Bytes not allocated."""
        return sum(self._ends) - sum(self._starts)

    @property
    def largest_free_bytes(self) -> int:
        """Bytes of the largest allocation that would succeed."""
        return max((end - start for start, end in self.free_ranges), default=0)

    def allocate(self, nbytes: int) -> int:
        """Allocates ``nbytes`` and returns the address, a multiple of 64.

        Raises :class:`InvalidSizeError` below one byte and :class:`OutOfMemoryError` when no free
        range is large enough.
        """
        if nbytes < 1:
            raise InvalidSizeError(
                f"cannot allocate {nbytes} bytes: expected at least 1", nbytes=nbytes
            )
        size = _round_up(nbytes, LINE_BYTES)
        address = None
        if size >= BANK_BLOCK_BYTES:
            if self._stagger:
                cycle_bytes = BANK_SLOTS * BANK_BLOCK_BYTES
                phase_bytes = self._next_slot * BANK_BLOCK_BYTES
                address = self._first_fit(size, cycle_bytes, phase_bytes)
                if address is not None:
                    self._next_slot = (self._next_slot + SLOT_STRIDE) % BANK_SLOTS
            if address is None:
                address = self._first_fit(size, BANK_BLOCK_BYTES, 0)
        if address is None:
            address = self._first_fit(size, LINE_BYTES, 0)
        if address is None:
            raise OutOfMemoryError(
                f"no room for {nbytes} bytes: {self.free_bytes} of {self._limit_bytes} bytes are "
                f"free, {self.largest_free_bytes} of them in one piece",
                nbytes=nbytes,
                free_bytes=self.free_bytes,
                largest_free_bytes=self.largest_free_bytes,
            )
        self._take(address, size)
        return address

    def free(self, address: int) -> int:
        """Frees the allocation at ``address`` and returns its size; ``KeyError`` if none is."""
        size = self._sizes.pop(address)
        start, end = address, address + size
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == end:
            end = self._ends[index]
            del self._starts[index], self._ends[index]
        if index > 0 and self._ends[index - 1] == start:
            self._ends[index - 1] = end
        else:
            self._starts.insert(index, start)
            self._ends.insert(index, end)
        return size

    def _first_fit(self, size: int, period: int, phase: int) -> int | None:
        for start, end in zip(self._starts, self._ends, strict=True):
            if end - start < size:
                continue
            address = _round_up(start - phase, period) + phase
            if address + size <= end:
                return address
        return None

    def _take(self, address: int, size: int) -> None:
        index = bisect_right(self._starts, address) - 1
        start, end = self._starts[index], self._ends[index]
        rest = [(start, address), (address + size, end)]
        rest = [(low, high) for low, high in rest if low < high]
        self._starts[index : index + 1] = [low for low, _ in rest]
        self._ends[index : index + 1] = [high for _, high in rest]
        self._sizes[address] = size
