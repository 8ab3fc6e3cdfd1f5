"""The allocators: no overlap, no leak, first fit, banks, refusals, statistics."""

from __future__ import annotations

import random
import sys
from bisect import bisect_left, insort
from types import FrameType
from typing import Any

import pytest

from sw_driver.errors import InvalidSizeError, OutOfMemoryError
from sw_driver.memory import allocator as allocator_module
from sw_driver.memory.allocator import (
    BANK_BLOCK_BYTES,
    BANK_SLOTS,
    SLOT_STRIDE,
    Allocator,
    ChannelAllocator,
    MemoryStatistics,
)

LIMIT = 4 << 20
LINE = 64
BLOCK_LINES = 256
"""Lines of a bank block."""
CYCLE_LINES = 8 * BLOCK_LINES
"""Lines after which blocks lie in the same banks again."""


def lines(nbytes: int) -> int:
    return -(-nbytes // LINE)


class Reference:
    """The policy of a channel by its definition, on a map with one byte a granule: 1 is in use.

    Without ``banks`` that of a memory that has none.
    """

    def __init__(self, granules: int, *, banks: bool, stagger: bool = False) -> None:
        self.used = bytearray(granules)
        self.banks = banks
        self.stagger = stagger
        self.next_slot = 0
        self.counts: dict[int, int] = {}

    def search(self, count: int, period: int = 1, phase: int = 0) -> int | None:
        if period == 1:
            place = self.used.find(bytes(count))
            return None if place < 0 else place
        for place in range(phase, len(self.used) - count + 1, period):
            if self.used.find(1, place, place + count) < 0:
                return place
        return None

    def allocate(self, count: int) -> int | None:
        place = None
        if self.banks and count >= BLOCK_LINES:
            if self.stagger:
                place = self.search(count, CYCLE_LINES, self.next_slot * BLOCK_LINES)
                if place is not None:
                    self.next_slot = (self.next_slot + 2) % 8
            if place is None:
                place = self.search(count, BLOCK_LINES)
        if place is None:
            place = self.search(count)
        if place is not None:
            self.used[place : place + count] = b"\1" * count
            self.counts[place] = count
        return place

    def free(self, place: int) -> int:
        count = self.counts.pop(place)
        self.used[place : place + count] = bytes(count)
        return count

    def free_ranges(self) -> list[tuple[int, int]]:
        ranges = []
        end = 0
        while (start := self.used.find(0, end)) >= 0:
            end = self.used.find(1, start)
            end = len(self.used) if end < 0 else end
            ranges.append((start, end))
        return ranges


class Intervals:
    """What is allocated, as ordered starts; each addition is held against its neighbours."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}
        self.allocated_bytes = 0
        self.peak_bytes = 0

    def add(self, start: int, size: int) -> None:
        place = bisect_left(self.starts, start)
        assert 0 <= start <= self.limit_bytes - size
        if place < len(self.starts):
            assert start + size <= self.starts[place], f"{start:#x} reaches into the next"
        if place:
            before = self.starts[place - 1]
            assert before + self.sizes[before] <= start, f"{start:#x} is in {before:#x}"
        insort(self.starts, start)
        self.sizes[start] = size
        self.allocated_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)

    def remove(self, start: int) -> int:
        del self.starts[bisect_left(self.starts, start)]
        size = self.sizes.pop(start)
        self.allocated_bytes -= size
        return size

    def gaps(self) -> list[tuple[int, int]]:
        ends = [0, *(start + self.sizes[start] for start in self.starts)]
        starts = [*self.starts, self.limit_bytes]
        return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]


def check(allocator: Allocator) -> None:
    """Allocations and free ranges tile the memory, and free ranges are coalesced."""
    ranges = [(start, start + size, False) for start, size in allocator.allocations.items()]
    ranges += [(start, end, True) for start, end in allocator.free_ranges]
    ranges.sort()
    expected_start = 0
    last_free = False
    for start, end, free in ranges:
        assert start == expected_start
        assert end > start
        assert not (free and last_free), f"free ranges meet at {start:#x}"
        expected_start, last_free = end, free
    assert expected_start == allocator.limit_bytes


@pytest.fixture(params=[1, 2, None], ids=["buckets of 1", "buckets of 2", "buckets as shipped"])
def bucket_ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small buckets are split and joined in small memories too."""
    if request.param is not None:
        monkeypatch.setattr(allocator_module, "_BUCKET_RANGES", request.param)


@pytest.mark.parametrize(
    ("limit_bytes", "operations", "largest_log2", "stagger", "gets_full"),
    [
        (64 << 20, 1_000_000, 22, True, True),
        (16 << 20, 100_000, 17, False, True),
        (16 << 30, 200_000, 24, True, False),
    ],
    ids=["64 MiB", "16 MiB, not staggered", "16 GiB"],
)
def test_random_operations_neither_overlap_nor_leak(
    limit_bytes: int, operations: int, largest_log2: int, stagger: bool, gets_full: bool
) -> None:
    uniform = random.Random(operations).random
    allocator = ChannelAllocator(limit_bytes=limit_bytes, stagger=stagger)
    shadow = Intervals(limit_bytes)
    live: list[int] = []
    made = refused = most_live = 0
    for operation in range(operations):
        # The memory fills up and empties in turns.
        share_freed = 0.52 if operation // 20_000 % 3 == 2 else 0.46
        if live and uniform() < share_freed:
            chosen = int(uniform() * len(live))
            live[chosen], live[-1] = live[-1], live[chosen]
            address = live.pop()
            assert allocator.free(address) == shadow.remove(address)
        else:
            nbytes = int(2 ** (largest_log2 * uniform()))
            try:
                address = allocator.allocate(nbytes)
            except OutOfMemoryError:
                refused += 1
                assert allocator.largest_free_bytes < nbytes
            else:
                assert address % LINE == 0
                shadow.add(address, lines(nbytes) * LINE)
                live.append(address)
                made += 1
        if operation % 10_000 == 0:
            most_live = max(most_live, len(live))
            gaps = shadow.gaps()
            gap_sizes = [end - start for start, end in gaps]
            check(allocator)
            assert allocator.allocations == shadow.sizes
            assert allocator.free_ranges == gaps
            assert allocator.statistics() == MemoryStatistics(
                total_bytes=limit_bytes,
                free_bytes=sum(gap_sizes),
                largest_free_bytes=max(gap_sizes, default=0),
                free_ranges=len(gaps),
                allocations=len(live),
                peak_allocated_bytes=shadow.peak_bytes,
                allocations_made=made,
                allocations_freed=made - len(live),
                allocations_failed=refused,
            )
    assert (refused > 0) == gets_full
    assert most_live > 1000
    random.Random(0).shuffle(live)
    for address in live:
        allocator.free(address)
    assert allocator.free_ranges == [(0, limit_bytes)]
    assert allocator.statistics().allocations_made == allocator.statistics().allocations_freed
    assert allocator.allocate(limit_bytes) == 0


@pytest.mark.usefixtures("bucket_ranges")
def test_every_pattern_of_a_small_memory_is_searched_in_order() -> None:
    """Each set of free granules, each size: the lowest address, or refused if none is possible."""
    granule, count = 512, 10
    rng = random.Random(0)
    for pattern in range(1 << count):
        allocator = Allocator(limit_bytes=count * granule, granule_bytes=granule)
        reference = Reference(count, banks=False)
        for place in range(count):
            assert allocator.allocate(granule) == place * granule
            reference.allocate(1)
        freed = [place for place in range(count) if pattern >> place & 1]
        rng.shuffle(freed)
        for place in freed:
            assert allocator.free(place * granule) == granule
            reference.free(place)
        ranges = [(start * granule, end * granule) for start, end in reference.free_ranges()]
        largest = max((end - start for start, end in ranges), default=0)
        assert allocator.free_ranges == ranges
        for size in range(1, count + 1):
            place = reference.search(size)
            assert (place is None) == (size * granule > largest)
            if place is None:
                with pytest.raises(OutOfMemoryError):
                    allocator.allocate(size * granule)
            else:
                assert allocator.allocate(size * granule) == place * granule
                assert allocator.free(place * granule) == size * granule
            assert allocator.free_ranges == ranges
        assert allocator.largest_free_bytes == largest
        for place in set(range(count)) - set(freed):
            allocator.free(place * granule)
        assert allocator.free_ranges == [(0, count * granule)]


@pytest.mark.usefixtures("bucket_ranges")
def test_every_short_sequence_of_calls_follows_the_policy() -> None:
    """All sequences of allocations of 1 to 3 of 5 granules and of frees of whatever is there."""
    count, depth = 5, 5
    sequences = 0

    def replay(calls: tuple[tuple[str, int], ...]) -> Reference:
        allocator = Allocator(limit_bytes=count, granule_bytes=1)
        reference = Reference(count, banks=False)
        for name, value in calls:
            if name == "free":
                assert allocator.free(value) == reference.free(value)
            elif (place := reference.allocate(value)) is not None:
                assert allocator.allocate(value) == place
            else:
                with pytest.raises(OutOfMemoryError):
                    allocator.allocate(value)
        assert allocator.free_ranges == reference.free_ranges()
        assert allocator.allocations == reference.counts
        return reference

    def extend(calls: tuple[tuple[str, int], ...]) -> None:
        nonlocal sequences
        sequences += 1
        reference = replay(calls)
        if len(calls) < depth:
            for size in range(1, 4):
                extend((*calls, ("allocate", size)))
            for address in reference.counts:
                extend((*calls, ("free", address)))

    extend(())
    assert sequences > 1000


@pytest.mark.usefixtures("bucket_ranges")
@pytest.mark.parametrize("stagger", [False, True])
def test_addresses_are_those_of_the_definition(stagger: bool) -> None:
    """Random calls on 40 blocks, against a search of the whole memory for each."""
    blocks = 40
    rng = random.Random(stagger)
    allocator = ChannelAllocator(limit_bytes=blocks * BLOCK_LINES * LINE, stagger=stagger)
    reference = Reference(blocks * BLOCK_LINES, banks=True, stagger=stagger)
    seen = {"staggered": 0, "on a block": 0, "anywhere": 0, "refused": 0}
    for operation in range(6000):
        share_freed = 0.6 if operation // 200 % 2 else 0.35
        if reference.counts and rng.random() < share_freed:
            place = rng.choice(list(reference.counts))
            assert allocator.free(place * LINE) == reference.free(place) * LINE
        else:
            count = rng.choice(
                [1, rng.randrange(1, 255), 255, 256, 257, 512, rng.randrange(256, 1500)]
            )
            nbytes = count * LINE - rng.randrange(LINE)
            slot = reference.next_slot
            place = reference.allocate(count)
            if place is None:
                seen["refused"] += 1
                with pytest.raises(OutOfMemoryError):
                    allocator.allocate(nbytes)
            else:
                assert allocator.allocate(nbytes) == place * LINE
                if count >= BLOCK_LINES:
                    staggered = reference.next_slot != slot
                    aligned = place % BLOCK_LINES == 0
                    key = "staggered" if staggered else "on a block" if aligned else "anywhere"
                    seen[key] += 1
        if operation % 20 == 0:
            assert allocator.free_ranges == [
                (start * LINE, end * LINE) for start, end in reference.free_ranges()
            ]
            check(allocator)
    assert all(count > 20 for name, count in seen.items() if stagger or name != "staggered"), seen


def test_the_same_calls_give_the_same_addresses() -> None:
    """Also if one of two is asked for its statistics, and refuses what is too much, meanwhile."""
    rng = random.Random(0)
    plain, asked = (ChannelAllocator(limit_bytes=LIMIT) for _ in range(2))
    live: list[int] = []
    for _ in range(5000):
        if live and rng.random() < 0.5:
            address = live.pop(rng.randrange(len(live)))
            plain.free(address)
            asked.free(address)
        else:
            nbytes = int(2 ** rng.uniform(0, 17))
            live.append(plain.allocate(nbytes))
            assert asked.allocate(nbytes) == live[-1]
        asked.statistics()
        with pytest.raises(OutOfMemoryError):
            asked.allocate(LIMIT + 1)


def test_a_search_passes_over_buckets_that_have_led_one_before_in_vain() -> None:
    """Each staggered block leaves a free block behind, in a slot that is nobody's turn."""
    allocator = ChannelAllocator(limit_bytes=1 << 30)
    for _ in range(4000):
        allocator.allocate(BANK_BLOCK_BYTES)
    assert allocator.statistics().free_ranges == 4000
    executed_lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal executed_lines
        executed_lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        allocator.allocate(BANK_BLOCK_BYTES)
    finally:
        sys.settrace(before)
    assert 4000 / 64 < executed_lines < 1000


def test_buckets_of_free_ranges_become_few_again() -> None:
    """The time of a search is the number of buckets: it follows what is free now, not what was."""
    allocator = Allocator(limit_bytes=8000, granule_bytes=1)
    for _ in range(8000):
        allocator.allocate(1)
    for address in range(0, 8000, 2):
        allocator.free(address)
    buckets = allocator._free_ranges._starts
    assert len(buckets) >= 4000 / 64
    for address in range(1, 8000, 2):
        if address % 80 != 1:
            allocator.free(address)
    assert allocator.statistics().free_ranges == 101
    assert len(buckets) <= 16


def test_large_allocations_rotate_over_the_banks() -> None:
    allocator = ChannelAllocator(limit_bytes=LIMIT)
    addresses = [allocator.allocate(200_000) for _ in "pgmv"]
    assert all(address % BANK_BLOCK_BYTES == 0 for address in addresses)
    slots = [address // BANK_BLOCK_BYTES % BANK_SLOTS for address in addresses]
    assert slots == [SLOT_STRIDE * number % BANK_SLOTS for number in range(4)]


def test_loads_and_stores_of_a_round_meet_in_no_bank() -> None:
    allocator = ChannelAllocator(limit_bytes=LIMIT)
    p, g, m, v = (allocator.allocate(200_000) // BANK_BLOCK_BYTES for _ in "pgmv")
    for block in range(1, 12):
        loads = [tensor + block for tensor in (p, g, m, v)]
        stores = [tensor + block - 1 for tensor in (p, m, v)]
        slots = [number % BANK_SLOTS for number in loads + stores]
        assert len(set(slots)) == len(slots)


def test_without_staggering_large_allocations_are_only_aligned() -> None:
    allocator = ChannelAllocator(limit_bytes=LIMIT, stagger=False)
    addresses = [allocator.allocate(BANK_BLOCK_BYTES) for _ in range(4)]
    assert addresses == [number * BANK_BLOCK_BYTES for number in range(4)]


def test_small_allocations_fill_the_gaps_that_staggering_leaves() -> None:
    allocator = ChannelAllocator(limit_bytes=LIMIT)
    first = allocator.allocate(BANK_BLOCK_BYTES)
    second = allocator.allocate(BANK_BLOCK_BYTES)
    small = allocator.allocate(100)
    assert first < small < second


@pytest.mark.parametrize("size", [LIMIT, LIMIT - BANK_BLOCK_BYTES, LIMIT // 2 + 64])
def test_staggering_never_costs_an_allocation(size: int) -> None:
    allocator = ChannelAllocator(limit_bytes=LIMIT)
    allocator.free(allocator.allocate(BANK_BLOCK_BYTES))  # the next slot is not the first
    allocator.allocate(size)
    check(allocator)


def test_alignment_never_costs_an_allocation() -> None:
    allocator = ChannelAllocator(limit_bytes=LIMIT)
    allocator.allocate(64)
    assert allocator.allocate(LIMIT - 64) == 64
    assert allocator.free_bytes == 0


def test_a_size_that_fills_a_block_but_for_its_last_line_is_staggered() -> None:
    allocator = ChannelAllocator(limit_bytes=LIMIT)
    sizes = [BANK_BLOCK_BYTES - LINE, BANK_BLOCK_BYTES - LINE + 1, BANK_BLOCK_BYTES]
    addresses = [allocator.allocate(size) for size in sizes]
    # The first is small, so slot 0 is not free in the first cycle.
    cycle_bytes = BANK_SLOTS * BANK_BLOCK_BYTES
    assert addresses == [0, cycle_bytes, SLOT_STRIDE * BANK_BLOCK_BYTES]


def test_an_allocation_that_is_not_staggered_does_not_use_up_a_slot() -> None:
    allocator = ChannelAllocator(limit_bytes=BANK_SLOTS * BANK_BLOCK_BYTES)
    allocator.allocate(BANK_BLOCK_BYTES)
    rest = allocator.allocate((BANK_SLOTS - 1) * BANK_BLOCK_BYTES)
    assert rest == BANK_BLOCK_BYTES
    allocator.free(rest)
    assert allocator.allocate(BANK_BLOCK_BYTES) == SLOT_STRIDE * BANK_BLOCK_BYTES


def test_without_banks_large_allocations_only_follow_the_granule() -> None:
    allocator = Allocator(limit_bytes=LIMIT, granule_bytes=4096)
    assert [allocator.allocate(size) for size in (1, 4097, 50_000, 4096)] == [
        0,
        4096,
        3 * 4096,
        16 * 4096,
    ]
    assert allocator.allocations == {0: 4096, 4096: 8192, 3 * 4096: 53248, 16 * 4096: 4096}
    check(allocator)


def test_sizes_are_rounded_up_to_lines() -> None:
    allocator = ChannelAllocator(limit_bytes=256)
    assert [allocator.allocate(size) for size in (1, 64, 65)] == [0, 64, 128]
    assert allocator.free_bytes == 0


def test_out_of_memory_says_the_numbers_and_changes_nothing() -> None:
    allocator = ChannelAllocator(limit_bytes=1024)
    middle = [allocator.allocate(256) for _ in range(4)][1]
    allocator.free(middle)
    before = allocator.free_ranges, allocator.allocations
    with pytest.raises(OutOfMemoryError, match=r"300 bytes.* 256 of 1024") as caught:
        allocator.allocate(300)
    assert caught.value.details == {"nbytes": 300, "free_bytes": 256, "largest_free_bytes": 256}
    assert (allocator.free_ranges, allocator.allocations) == before


@pytest.mark.parametrize("nbytes", [0, -1])
def test_empty_allocations_are_refused(nbytes: int) -> None:
    with pytest.raises(InvalidSizeError, match=str(nbytes)):
        ChannelAllocator(limit_bytes=1024).allocate(nbytes)


def test_freeing_what_is_not_allocated_is_refused() -> None:
    allocator = ChannelAllocator(limit_bytes=1024)
    allocator.allocate(128)
    with pytest.raises(KeyError):
        allocator.free(64)
    assert allocator.free_bytes == 896


@pytest.mark.parametrize("limit_bytes", [0, -64, 100])
def test_the_limit_is_checked(limit_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"limit_bytes is {limit_bytes}, .* multiple of 64"):
        ChannelAllocator(limit_bytes=limit_bytes)
    with pytest.raises(ValueError, match=f"limit_bytes is {limit_bytes}, .* multiple of 4096"):
        Allocator(limit_bytes=limit_bytes, granule_bytes=4096)


@pytest.mark.parametrize("granule_bytes", [0, -64])
def test_the_granule_is_checked(granule_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"granule_bytes is {granule_bytes}, expected"):
        Allocator(limit_bytes=4096, granule_bytes=granule_bytes)


def test_statistics() -> None:
    allocator = Allocator(limit_bytes=10 * 4096, granule_bytes=4096)
    statistics = allocator.statistics()
    assert (statistics.free_ranges, statistics.external_fragmentation) == (1, 0)
    addresses = [allocator.allocate(2 * 4096 - 1) for _ in range(5)]
    statistics = allocator.statistics()
    assert (statistics.free_bytes, statistics.largest_free_bytes) == (0, 0)
    assert (statistics.free_ranges, statistics.external_fragmentation) == (0, 0)
    for address in (addresses[0], addresses[2], addresses[3]):
        allocator.free(address)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(4 * 4096 + 1)
    with pytest.raises(InvalidSizeError):
        allocator.allocate(0)
    with pytest.raises(KeyError):
        allocator.free(addresses[0])
    statistics = allocator.statistics()
    assert statistics == MemoryStatistics(
        total_bytes=10 * 4096,
        free_bytes=6 * 4096,
        largest_free_bytes=4 * 4096,
        free_ranges=2,
        allocations=2,
        peak_allocated_bytes=10 * 4096,
        allocations_made=5,
        allocations_freed=3,
        allocations_failed=1,
    )
    assert statistics.allocated_bytes == 4 * 4096
    assert statistics.external_fragmentation == pytest.approx(1 / 3)
