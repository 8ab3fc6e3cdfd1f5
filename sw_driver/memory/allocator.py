"""Allocation of memory: first fit, and in a channel with its tensors staggered over the banks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import InvalidSizeError, OutOfMemoryError
from ..transport import LINE_BYTES

__all__ = [
    "BANK_BLOCK_BYTES",
    "BANK_SLOTS",
    "SLOT_STRIDE",
    "Allocator",
    "ChannelAllocator",
    "MemoryStatistics",
]

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


@dataclass(frozen=True, kw_only=True)
class MemoryStatistics:
    """How much of a memory is allocated and free, and what has been asked of its allocator."""

    total_bytes: int
    """Bytes that can be allocated when nothing is."""
    free_bytes: int
    """Bytes not allocated."""
    largest_free_bytes: int
    """Bytes of the largest allocation that would succeed."""
    free_ranges: int
    """Pieces that the free bytes are in."""
    allocations: int
    """Allocations that have not been freed."""
    peak_allocated_bytes: int = field(compare=False)
    """The most bytes that were ever allocated at once."""
    allocations_made: int = field(compare=False)
    """Allocations that have succeeded since the memory was opened, freed ones among them."""
    allocations_freed: int = field(compare=False)
    """Allocations that have been freed."""
    allocations_failed: int = field(compare=False)
    """Allocations that found no free range large enough."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes allocated, each allocation rounded up to granules."""
        return self.total_bytes - self.free_bytes

    @property
    def external_fragmentation(self) -> float:
        """Part of the free bytes that is outside the largest piece: 0 if all is in one, below 1."""
        if not self.free_bytes:
            return 0.0
        return 1 - self.largest_free_bytes / self.free_bytes


class Allocator:
    """Hands out ranges of ``[0, limit_bytes)``, the first that fits, counted from address 0.

    Sizes are rounded up to granules, so that no two allocations share one. Freed ranges are united
    with free neighbours at once. The same calls give the same addresses.

    A call takes some microseconds while there are thousands of free ranges; the number of
    allocations does not matter.

    Not safe for use by several threads at once; the driver holds a lock.

    Parameters
    ----------
    limit_bytes: size of the memory, a multiple of the granule.
    granule_bytes: what addresses and sizes are multiples of, for example the sector of a disk.

    Raises
    ------
    ValueError
        If there is not at least one granule, or not a whole number of them.
    """

    def __init__(self, *, limit_bytes: int, granule_bytes: int = LINE_BYTES) -> None:
        if granule_bytes < 1:
            raise ValueError(f"granule_bytes is {granule_bytes}, expected at least 1")
        if limit_bytes < granule_bytes or limit_bytes % granule_bytes:
            raise ValueError(
                f"limit_bytes is {limit_bytes}, expected a positive multiple of {granule_bytes}"
            )
        self._limit_bytes = limit_bytes
        self._granule_bytes = granule_bytes
        self._free_ranges = _FreeRanges(limit_bytes, granule_bytes)
        self._sizes: dict[int, int] = {}
        self._allocated_bytes = 0
        self._peak_allocated_bytes = 0
        self._made = 0
        self._failed = 0

    @property
    def limit_bytes(self) -> int:
        """Bytes that can be allocated when nothing is."""
        return self._limit_bytes

    @property
    def granule_bytes(self) -> int:
        """Addresses and sizes are multiples of this."""
        return self._granule_bytes

    @property
    def allocations(self) -> dict[int, int]:
        """Bytes, rounded up to granules, of each allocation by its address."""
        return dict(self._sizes)

    @property
    def free_ranges(self) -> list[tuple[int, int]]:
        """Free ranges ``(start, end)`` in ascending order; no two touch."""
        return self._free_ranges.ranges()

    @property
    def free_bytes(self) -> int:
        """Bytes not allocated."""
        return self._limit_bytes - self._allocated_bytes

    @property
    def largest_free_bytes(self) -> int:
        """Bytes of the largest allocation that would succeed."""
        return self._free_ranges.largest_bytes()

    def statistics(self) -> MemoryStatistics:
        """Takes the statistics; as cheap as an allocation."""
        return MemoryStatistics(
            total_bytes=self._limit_bytes,
            free_bytes=self.free_bytes,
            largest_free_bytes=self.largest_free_bytes,
            free_ranges=len(self._free_ranges),
            allocations=len(self._sizes),
            peak_allocated_bytes=self._peak_allocated_bytes,
            allocations_made=self._made,
            allocations_freed=self._made - len(self._sizes),
            allocations_failed=self._failed,
        )

    def allocate(self, nbytes: int) -> int:
        """Allocates ``nbytes`` and returns the address, a multiple of the granule.

        Raises :class:`InvalidSizeError` below one byte and :class:`OutOfMemoryError` when no free
        range is large enough.
        """
        if nbytes < 1:
            raise InvalidSizeError(
                f"cannot allocate {nbytes} bytes: expected at least 1", nbytes=nbytes
            )
        size = -(-nbytes // self._granule_bytes) * self._granule_bytes
        address = self._take(size)
        if address is None:
            self._failed += 1
            raise OutOfMemoryError(
                f"no room for {nbytes} bytes: {self.free_bytes} of {self._limit_bytes} bytes are "
                f"free, {self.largest_free_bytes} of them in one piece",
                nbytes=nbytes,
                free_bytes=self.free_bytes,
                largest_free_bytes=self.largest_free_bytes,
            )
        self._sizes[address] = size
        self._made += 1
        self._allocated_bytes += size
        self._peak_allocated_bytes = max(self._peak_allocated_bytes, self._allocated_bytes)
        return address

    def free(self, address: int) -> int:
        """Frees the allocation at ``address`` and returns its size; ``KeyError`` if none is."""
        size = self._sizes.pop(address)
        self._allocated_bytes -= size
        self._free_ranges.give(address, size)
        return size

    def _take(self, size: int) -> int | None:
        """Takes ``size`` bytes, whole granules; ``None`` if no free range is large enough."""
        return self._free_ranges.take(size, self._free_ranges.anywhere)


class ChannelAllocator(Allocator):
    """Hands out the memory of a channel, in 64-byte lines.

    Allocations of :data:`BANK_BLOCK_BYTES` or more start on a bank block and, with ``stagger``,
    each :data:`SLOT_STRIDE` slots after the one before it, where space allows; when it does not,
    any place will do, so staggering never causes an allocation to fail. Of the places that are
    equally good, the one with the lowest address is taken.

    Parameters
    ----------
    limit_bytes: size of the memory, a multiple of 64.
    stagger: whether large allocations rotate over the bank slots.

    Raises
    ------
    ValueError
        If there is not at least one line, or not a whole number of them.
    """

    def __init__(self, *, limit_bytes: int, stagger: bool = True) -> None:
        super().__init__(limit_bytes=limit_bytes, granule_bytes=LINE_BYTES)
        self._stagger = stagger
        self._next_slot = 0

    @property
    def stagger(self) -> bool:
        """Whether large allocations rotate over the bank slots."""
        return self._stagger

    def _take(self, size: int) -> int | None:
        if size < BANK_BLOCK_BYTES:
            return super()._take(size)
        address = None
        if self._stagger:
            slot = _Placement(BANK_SLOTS * BANK_BLOCK_BYTES, self._next_slot * BANK_BLOCK_BYTES)
            address = self._free_ranges.take(size, slot)
            if address is not None:
                self._next_slot = (self._next_slot + SLOT_STRIDE) % BANK_SLOTS
        if address is None:
            address = self._free_ranges.take(size, _Placement(BANK_BLOCK_BYTES))
        if address is None:
            address = super()._take(size)
        return address


class _Placement(NamedTuple):
    """The addresses ``phase_bytes + k * period_bytes`` for any integer k, all whole granules."""

    period_bytes: int
    phase_bytes: int = 0


_BUCKET_RANGES = 32
"""Measured: with thousands of free ranges, half and twice as many are no faster."""


class _FreeRanges:
    """Disjoint ranges in ascending order, no two of which touch.

    The ranges are in buckets of up to twice ``_BUCKET_RANGES``, and a search passes over most
    buckets as a whole: for each of them, and for each placement that was ever looked for, there is
    a bound, and no range of the bucket holds more bytes from its first address of that placement
    on. Bounds are raised when a range grows, but lowered only when one has led a search into its
    bucket in vain.
    """

    def __init__(self, size: int, granule_bytes: int) -> None:
        self.anywhere = _Placement(granule_bytes)
        """All addresses that may be taken."""
        # Starts and sizes go together. A bucket is empty only if it is the only one.
        self._starts = [[0]]
        self._sizes = [[size]]
        # The first start of each bucket but the first.
        self._separators: list[int] = []
        self._bounds = {self.anywhere: [size]}

    def __len__(self) -> int:
        return sum(map(len, self._starts))

    def ranges(self) -> list[tuple[int, int]]:
        """All ranges ``(start, end)``."""
        return [
            (start, start + size)
            for starts, sizes in zip(self._starts, self._sizes, strict=True)
            for start, size in zip(starts, sizes, strict=True)
        ]

    def largest_bytes(self) -> int:
        """Bytes of the largest range; 0 if there is none."""
        bounds = self._bounds[self.anywhere]
        while True:
            bound = max(bounds)
            bucket = bounds.index(bound)
            self._tighten(bucket, self.anywhere)
            if bounds[bucket] == bound:
                return bound

    def take(self, size: int, placement: _Placement) -> int | None:
        """Takes ``size`` bytes at the lowest address of the placement that has as many free.

        Returns the address; ``None``, and nothing changes, if there is no such address.
        """
        bounds = self._bounds.get(placement)
        if bounds is None:
            # What holds for all addresses holds for some of them.
            bounds = self._bounds[placement] = list(self._bounds[self.anywhere])
        period, phase = placement
        for bucket, bound in enumerate(bounds):
            if bound < size:
                continue
            starts = self._starts[bucket]
            for index, found in enumerate(self._sizes[bucket]):
                if found >= size:
                    skipped = (phase - starts[index]) % period
                    if skipped + size <= found:
                        return self._cut(bucket, index, skipped, size)
            self._tighten(bucket, placement)
        return None

    def give(self, start: int, size: int) -> None:
        """Adds a range, which overlaps none, and unites it with those that it touches."""
        bucket = bisect_right(self._separators, start)
        starts, sizes = self._starts[bucket], self._sizes[bucket]
        index = bisect_left(starts, start)
        after_bucket, after = bucket, index
        if index == len(starts) and bucket < len(self._separators):
            after_bucket, after = bucket + 1, 0
        after_starts = self._starts[after_bucket]
        touches_after = after < len(after_starts) and after_starts[after] == start + size
        if touches_after:
            size += self._sizes[after_bucket][after]
        if index and starts[index - 1] + sizes[index - 1] == start:
            sizes[index - 1] += size
            self._raise_bounds(bucket, starts[index - 1], sizes[index - 1])
            if touches_after:
                self._delete(after_bucket, after)
        elif touches_after:
            self._replace(after_bucket, after, start, size)
            self._raise_bounds(after_bucket, start, size)
        else:
            self._raise_bounds(bucket, start, size)
            self._insert(bucket, index, start, size)

    def _cut(self, bucket: int, index: int, skipped: int, size: int) -> int:
        """Takes ``size`` bytes of a range, after its first ``skipped``; returns the address."""
        address = self._starts[bucket][index] + skipped
        rest = self._sizes[bucket][index] - skipped - size
        if skipped:
            self._sizes[bucket][index] = skipped
            if rest:
                self._insert(bucket, index + 1, address + size, rest)
        elif rest:
            self._replace(bucket, index, address + size, rest)
        else:
            self._delete(bucket, index)
        return address

    def _replace(self, bucket: int, index: int, start: int, size: int) -> None:
        self._starts[bucket][index] = start
        self._sizes[bucket][index] = size
        if index == 0 and bucket:
            self._separators[bucket - 1] = start

    def _insert(self, bucket: int, index: int, start: int, size: int) -> None:
        # The separator stays: no new range comes before the first of a bucket but the first bucket.
        starts, sizes = self._starts[bucket], self._sizes[bucket]
        starts.insert(index, start)
        sizes.insert(index, size)
        if len(starts) > 2 * _BUCKET_RANGES:
            self._starts.insert(bucket + 1, starts[_BUCKET_RANGES:])
            self._sizes.insert(bucket + 1, sizes[_BUCKET_RANGES:])
            self._separators.insert(bucket, starts[_BUCKET_RANGES])
            del starts[_BUCKET_RANGES:], sizes[_BUCKET_RANGES:]
            for bounds in self._bounds.values():
                bounds.insert(bucket, bounds[bucket])

    def _delete(self, bucket: int, index: int) -> None:
        starts = self._starts[bucket]
        del starts[index], self._sizes[bucket][index]
        if starts and index == 0 and bucket:
            self._separators[bucket - 1] = starts[0]
        # Neighbours with few ranges become one bucket, so that the buckets stay few.
        for left in (bucket - 1, bucket):
            if 0 <= left < len(self._separators):
                count = len(self._starts[left]) + len(self._starts[left + 1])
                if count <= _BUCKET_RANGES // 2 or not starts:
                    self._join(left)
                    break

    def _join(self, left: int) -> None:
        """Makes one bucket of ``left`` and the next."""
        self._starts[left] += self._starts.pop(left + 1)
        self._sizes[left] += self._sizes.pop(left + 1)
        del self._separators[left]
        for bounds in self._bounds.values():
            bound = bounds.pop(left + 1)
            bounds[left] = max(bounds[left], bound)

    def _raise_bounds(self, bucket: int, start: int, size: int) -> None:
        """Regards a range of the bucket that is new or has grown."""
        for (period, phase), bounds in self._bounds.items():
            if size > bounds[bucket]:
                bounds[bucket] = max(bounds[bucket], size - (phase - start) % period)

    def _tighten(self, bucket: int, placement: _Placement) -> None:
        """Lowers a bound to what the bucket does hold."""
        usable = self._sizes[bucket]
        if placement != self.anywhere:
            period, phase = placement
            usable = [
                size - (phase - start) % period
                for start, size in zip(self._starts[bucket], usable, strict=True)
            ]
        self._bounds[placement][bucket] = max(usable, default=0)
