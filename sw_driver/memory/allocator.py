"""Allocation of memory: first fit, and in a channel with its tensors staggered over the banks."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass

from ..errors import OutOfMemoryError
from ..transport import LINE_BYTES

__all__ = [
    "BANK_BLOCK_BYTES",
    "BANK_PAIRS",
    "PAIR_STRIDE",
    "Allocator",
    "ChannelAllocator",
    "MemoryStatistics",
]

BANK_BLOCK_BYTES = 16 * 1024
"""Bytes of an aligned block that lies in one pair of banks (two rows in two bank groups)."""

BANK_PAIRS = 8
"""Pairs of banks of a channel, through which consecutive blocks cycle."""

PAIR_STRIDE = 2
"""Pairs of banks from one staggered tensor to the next.

A run loads block k of its four tensors and stores block k-1 of three. With the tensors two pairs
apart the loads lie in pairs of one parity and the stores in pairs of the other, so that no two of
the seven meet in a bank.
"""


@dataclass(frozen=True, kw_only=True)
class MemoryStatistics:
    """How much of a memory, or of one channel of it, is allocated and free."""

    total_bytes: int
    """Bytes that can be allocated when nothing is."""
    free_bytes: int
    """Bytes not allocated."""
    largest_free_bytes: int
    """Bytes of the largest allocation that may succeed."""
    allocations: int
    """Allocations that have a share here and have not been freed."""
    peak_allocated_bytes: int
    """The most bytes that were ever allocated at once."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes allocated, each allocation rounded up to granules."""
        return self.total_bytes - self.free_bytes


class Allocator:
    """Hands out ranges of ``[0, limit_bytes)``, the first that fits, counted from address 0.

    Sizes are rounded up to granules, so that no two allocations share one. Freed ranges are united
    with free neighbours at once. The same calls give the same addresses. A call takes time in
    proportion to the number of free ranges.

    Not safe for use by several threads at once; the driver holds a lock.

    Parameters
    ----------
    limit_bytes: size of the memory, a positive multiple of the granule.
    granule_bytes: what addresses and sizes are multiples of, for example the sector of a disk.
    """

    def __init__(self, *, limit_bytes: int, granule_bytes: int = LINE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._granule_bytes = granule_bytes
        # (start, end) in ascending order; no two touch.
        self._free = [(0, limit_bytes)]
        self._sizes: dict[int, int] = {}
        self._allocated_bytes = 0
        self._peak_allocated_bytes = 0

    def statistics(self) -> MemoryStatistics:
        """Takes the statistics."""
        return MemoryStatistics(
            total_bytes=self._limit_bytes,
            free_bytes=self._limit_bytes - self._allocated_bytes,
            largest_free_bytes=max((end - start for start, end in self._free), default=0),
            allocations=len(self._sizes),
            peak_allocated_bytes=self._peak_allocated_bytes,
        )

    def allocate(self, nbytes: int) -> int:
        """Allocates ``nbytes``, at least 1, and returns the address, a multiple of the granule.

        Raises :class:`OutOfMemoryError` when no free range is large enough.
        """
        size = -(-nbytes // self._granule_bytes) * self._granule_bytes
        address = self._take(size)
        if address is None:
            state = self.statistics()
            raise OutOfMemoryError(
                f"no room for {nbytes} bytes: {state.free_bytes} of {state.total_bytes} bytes are "
                f"free, {state.largest_free_bytes} of them in one piece",
                nbytes=nbytes,
                free_bytes=state.free_bytes,
                largest_free_bytes=state.largest_free_bytes,
            )
        self._sizes[address] = size
        self._allocated_bytes += size
        self._peak_allocated_bytes = max(self._peak_allocated_bytes, self._allocated_bytes)
        return address

    def free(self, address: int) -> None:
        """Frees the allocation at ``address``; ``KeyError`` if there is none."""
        size = self._sizes.pop(address)
        self._allocated_bytes -= size
        start, end = address, address + size
        index = bisect(self._free, (start, end))
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == start:
            index -= 1
            start = self._free.pop(index)[0]
        self._free.insert(index, (start, end))

    def _take(self, size: int) -> int | None:
        """Takes ``size`` bytes, whole granules; None if no free range is large enough."""
        return self._take_at(size)

    def _take_at(self, size: int, *, period: int = 1, phase: int = 0) -> int | None:
        """Takes ``size`` bytes at the lowest free address that is ``phase`` modulo ``period``."""
        for index, (start, end) in enumerate(self._free):
            address = start + (phase - start) % period
            if address + size <= end:
                rest = [(start, address), (address + size, end)]
                self._free[index : index + 1] = [each for each in rest if each[0] < each[1]]
                return address
        return None


class ChannelAllocator(Allocator):
    """Hands out the memory of a channel, in 64-byte lines.

    Allocations of :data:`BANK_BLOCK_BYTES` or more start on a bank block and, with ``stagger``,
    each :data:`PAIR_STRIDE` pairs after the one before it, where space allows; when it does not,
    any place will do, so staggering never causes an allocation to fail. Of the places that are
    equally good, the one with the lowest address is taken.

    Parameters
    ----------
    limit_bytes: size of the memory, a positive multiple of 64.
    stagger: whether large allocations rotate over the pairs of banks.
    """

    def __init__(self, *, limit_bytes: int, stagger: bool = True) -> None:
        super().__init__(limit_bytes=limit_bytes)
        self._stagger = stagger
        self._next_pair = 0

    def _take(self, size: int) -> int | None:
        address = None
        if size >= BANK_BLOCK_BYTES:
            if self._stagger:
                phase = self._next_pair * BANK_BLOCK_BYTES
                address = self._take_at(size, period=BANK_PAIRS * BANK_BLOCK_BYTES, phase=phase)
                if address is not None:
                    self._next_pair = (self._next_pair + PAIR_STRIDE) % BANK_PAIRS
            if address is None:
                address = self._take_at(size, period=BANK_BLOCK_BYTES)
        return super()._take(size) if address is None else address
