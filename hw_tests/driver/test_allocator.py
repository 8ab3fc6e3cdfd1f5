"""The allocator: no overlap, no leak, alignment, staggering, refusals."""

from __future__ import annotations

import random

import pytest

from sw_driver.allocator import BANK_BLOCK_BYTES, BANK_SLOTS, SLOT_STRIDE, ChannelAllocator
from sw_driver.errors import InvalidSizeError, OutOfMemoryError

LIMIT = 4 << 20


def check(allocator: ChannelAllocator) -> None:
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


@pytest.mark.parametrize("stagger", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_random_operations_neither_overlap_nor_leak(stagger: bool, seed: int) -> None:
    rng = random.Random(seed)
    allocator = ChannelAllocator(limit_bytes=LIMIT, stagger=stagger)
    live: dict[int, int] = {}
    refused = 0
    for operation in range(20_000):
        if live and rng.random() < 0.48:
            address = rng.choice(list(live))
            assert allocator.free(address) == live.pop(address)
        else:
            nbytes = int(2 ** rng.uniform(0, 18))
            size = -(-nbytes // 64) * 64
            try:
                address = allocator.allocate(nbytes)
            except OutOfMemoryError:
                refused += 1
                assert allocator.largest_free_bytes < size
            else:
                assert address % 64 == 0
                live[address] = size
        if operation % 50 == 0:
            check(allocator)
            assert allocator.allocations == live
    assert refused, "the memory was never full, so this tested little"
    for address in live:
        allocator.free(address)
    assert allocator.free_ranges == [(0, LIMIT)]
    assert allocator.allocate(LIMIT) == 0


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
    with pytest.raises(ValueError, match=str(limit_bytes)):
        ChannelAllocator(limit_bytes=limit_bytes)
