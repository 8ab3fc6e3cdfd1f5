"""The allocators: first fit and banks by their definition, refusals, statistics, what is in use."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.axdimm.allocator import (
    BANK_BLOCK_BYTES,
    BANK_PAIRS,
    PAIR_STRIDE,
    ChannelAllocator,
    channel_memory,
    least_capacity_bytes,
)
from sw_driver.device.errors import BusyError, OutOfMemoryError
from sw_driver.device.memory import Allocator, MemoryStatistics
from sw_driver.device.streams import Stream

LIMIT = 4 << 20
LINE = 64
BLOCK_LINES = 256
"""Lines of a bank block."""
CYCLE_LINES = 8 * BLOCK_LINES
"""Lines after which blocks lie in the same banks again."""


class Reference:
    """The policy of a channel by its definition, on a map with one byte a granule: 1 is in use.

    Without ``banks`` that of a memory that has none.
    """

    def __init__(self, granules: int, *, banks: bool, stagger: bool = False) -> None:
        self.used = bytearray(granules)
        self.banks = banks
        self.stagger = stagger
        self.next_pair = 0
        self.counts: dict[int, int] = {}
        self.peak = 0

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
                place = self.search(count, CYCLE_LINES, self.next_pair * BLOCK_LINES)
                if place is not None:
                    self.next_pair = (self.next_pair + 2) % 8
            if place is None:
                place = self.search(count, BLOCK_LINES)
        if place is None:
            place = self.search(count)
        if place is not None:
            self.used[place : place + count] = b"\1" * count
            self.counts[place] = count
            self.peak = max(self.peak, sum(self.counts.values()))
        return place

    def free(self, place: int) -> None:
        count = self.counts.pop(place)
        self.used[place : place + count] = bytes(count)

    def free_ranges(self) -> list[tuple[int, int]]:
        ranges = []
        end = 0
        while (start := self.used.find(0, end)) >= 0:
            end = self.used.find(1, start)
            end = len(self.used) if end < 0 else end
            ranges.append((start, end))
        return ranges


@pytest.mark.parametrize("kind", ["staggered", "not staggered", "without banks"])
def test_addresses_and_statistics_are_those_of_the_definition(kind: str) -> None:
    """Random calls on 40 blocks, against a search of the whole memory for each."""
    granules = 40 * BLOCK_LINES
    rng = random.Random(kind)
    stagger, banks = kind == "staggered", kind != "without banks"
    if banks:
        allocator = ChannelAllocator(limit_bytes=granules * LINE, stagger=stagger)
    else:
        allocator = Allocator(limit_bytes=granules * LINE)
    reference = Reference(granules, banks=banks, stagger=stagger)
    seen = {"staggered": 0, "on a block": 0, "anywhere": 0, "refused": 0}
    for operation in range(6000):
        share_freed = 0.6 if operation // 200 % 2 else 0.35
        if reference.counts and rng.random() < share_freed:
            place = rng.choice(list(reference.counts))
            allocator.free(place * LINE)
            reference.free(place)
        else:
            count = rng.choice(
                [1, rng.randrange(1, 255), 255, 256, 257, 512, rng.randrange(256, 1500)]
            )
            nbytes = count * LINE - rng.randrange(LINE)
            pair = reference.next_pair
            place = reference.allocate(count)
            if place is None:
                seen["refused"] += 1
                with pytest.raises(OutOfMemoryError):
                    allocator.allocate(nbytes)
            else:
                assert allocator.allocate(nbytes) == place * LINE
                staggered = reference.next_pair != pair
                aligned = place % BLOCK_LINES == 0 and count >= BLOCK_LINES
                seen["staggered" if staggered else "on a block" if aligned else "anywhere"] += 1
        if operation % 20 == 0:
            sizes = [end - start for start, end in reference.free_ranges()]
            expected = {
                "total_bytes": granules * LINE,
                "free_bytes": sum(sizes) * LINE,
                "largest_free_bytes": max(sizes, default=0) * LINE,
                "allocations": len(reference.counts),
                "peak_allocated_bytes": reference.peak * LINE,
            }
            assert vars(allocator.statistics()) == expected
    assert all(count > 20 for name, count in seen.items() if stagger or name != "staggered"), seen
    for place in list(reference.counts):
        allocator.free(place * LINE)
    assert allocator.allocate(granules * LINE) == 0


def test_large_allocations_rotate_over_the_banks() -> None:
    allocator = ChannelAllocator(limit_bytes=LIMIT)
    addresses = [allocator.allocate(200_000) for _ in "pgmv"]
    assert all(address % BANK_BLOCK_BYTES == 0 for address in addresses)
    pairs = [address // BANK_BLOCK_BYTES % BANK_PAIRS for address in addresses]
    assert pairs == [PAIR_STRIDE * number % BANK_PAIRS for number in range(4)]


def test_loads_and_stores_of_a_round_meet_in_no_bank() -> None:
    allocator = ChannelAllocator(limit_bytes=LIMIT)
    p, g, m, v = (allocator.allocate(200_000) // BANK_BLOCK_BYTES for _ in "pgmv")
    for block in range(1, 12):
        loads = [tensor + block for tensor in (p, g, m, v)]
        stores = [tensor + block - 1 for tensor in (p, m, v)]
        pairs = [number % BANK_PAIRS for number in loads + stores]
        assert len(set(pairs)) == len(pairs)


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
    allocator.free(allocator.allocate(BANK_BLOCK_BYTES))  # the next pair is not the first
    allocator.allocate(size)


def test_a_size_that_fills_a_block_but_for_its_last_line_is_staggered() -> None:
    allocator = ChannelAllocator(limit_bytes=LIMIT)
    sizes = [BANK_BLOCK_BYTES - LINE, BANK_BLOCK_BYTES - LINE + 1, BANK_BLOCK_BYTES]
    addresses = [allocator.allocate(size) for size in sizes]
    # The first is small, so pair 0 is not free in the first cycle.
    cycle_bytes = BANK_PAIRS * BANK_BLOCK_BYTES
    assert addresses == [0, cycle_bytes, PAIR_STRIDE * BANK_BLOCK_BYTES]


def test_an_allocation_that_is_not_staggered_does_not_use_up_a_pair() -> None:
    allocator = ChannelAllocator(limit_bytes=BANK_PAIRS * BANK_BLOCK_BYTES)
    allocator.allocate(BANK_BLOCK_BYTES)
    rest = allocator.allocate((BANK_PAIRS - 1) * BANK_BLOCK_BYTES)
    assert rest == BANK_BLOCK_BYTES
    allocator.free(rest)
    assert allocator.allocate(BANK_BLOCK_BYTES) == PAIR_STRIDE * BANK_BLOCK_BYTES


def test_out_of_memory_says_the_numbers_and_changes_nothing() -> None:
    allocator = ChannelAllocator(limit_bytes=1024)
    middle = [allocator.allocate(256) for _ in range(4)][1]
    allocator.free(middle)
    before = allocator.statistics()
    with pytest.raises(OutOfMemoryError, match=r"300 bytes.* 256 of 1024") as caught:
        allocator.allocate(300)
    assert caught.value.details == {"nbytes": 300, "free_bytes": 256, "largest_free_bytes": 256}
    assert allocator.statistics() == before
    assert allocator.allocate(256) == middle


def test_a_full_memory_names_what_bounds_it_and_the_least_that_would_do() -> None:
    def fill(nbytes: int) -> None:
        memory = Allocator(limit_bytes=nbytes, setting="some_bytes")
        first = memory.allocate(128)
        memory.allocate(256)
        memory.free(first)  # too small a piece for what comes
        memory.allocate(300)

    with pytest.raises(OutOfMemoryError, match="; some_bytes of at least 704 would do"):
        fill(640)
    fill(704)
    memory = channel_memory(1 << 20)
    with pytest.raises(OutOfMemoryError, match=f"; capacity_bytes of at least {1 << 21} would do"):
        memory.allocate(1 << 20)
    assert channel_memory(1 << 21).allocate(1 << 20) == 0
    assert least_capacity_bytes([1 << 20, 64]) == 1 << 21


def test_freeing_what_is_not_allocated_is_refused() -> None:
    allocator = ChannelAllocator(limit_bytes=1024)
    allocator.allocate(128)
    with pytest.raises(KeyError):
        allocator.free(64)
    assert allocator.statistics().free_bytes == 896


def test_statistics() -> None:
    allocator = Allocator(limit_bytes=10 * 4096, granule_bytes=4096)
    addresses = [allocator.allocate(2 * 4096 - 1) for _ in range(5)]
    statistics = allocator.statistics()
    assert (statistics.free_bytes, statistics.largest_free_bytes) == (0, 0)
    for address in (addresses[0], addresses[2], addresses[3]):
        allocator.free(address)
    statistics = allocator.statistics()
    assert statistics == MemoryStatistics(
        total_bytes=10 * 4096,
        free_bytes=6 * 4096,
        largest_free_bytes=4 * 4096,
        allocations=2,
        peak_allocated_bytes=10 * 4096,
    )
    assert statistics.allocated_bytes == 4 * 4096


NBYTES = 1 << 14
Held = tuple[Any, list[tuple[Callable[[Any], None], Any]]]
"""An operation, and what it needs with how that is freed."""


def copy_of(source: str, destination: str) -> Callable[[Axdimm, Stream], Held]:
    def start(device: Axdimm, stream: Stream) -> Held:
        def allocated(kind: str) -> Any:
            where = {"channel": 0} if kind == "Axdimm" else {}
            return getattr(device, f"Malloc{kind}")(NBYTES, **where)

        ends = {kind: allocated(kind) for kind in (destination, source)}
        copy = getattr(device, f"Memcpy{source}2{destination}")
        handle = copy(*ends.values(), NBYTES, stream=stream, modes="wait")
        return handle, [(getattr(device, f"Free{kind}"), end) for kind, end in ends.items()]

    return start


def run_of_sgd(device: Axdimm, stream: Stream) -> Held:
    tensors = {name: device.MallocAxdimm(NBYTES, 0) for name in "pg"}
    values = {"lr": 0.5, "weight_decay": 0.0}
    run = device.RunOnAxdimmAsync("sgd", tensors, 64, values, 0, stream=stream, modes="wait")
    return run, [(device.FreeAxdimm, each) for each in tensors.values()]


@pytest.mark.parametrize("backend", ["golden", "cycles"])
@pytest.mark.parametrize(
    "start",
    [
        *(copy_of(kind, "Axdimm") for kind in ("Host", "Gpu", "Nvme")),
        *(copy_of("Axdimm", kind) for kind in ("Host", "Gpu", "Nvme")),
        *(copy_of("Host", kind) for kind in ("Gpu", "Nvme")),
        *(copy_of(kind, "Host") for kind in ("Gpu", "Nvme")),
        run_of_sgd,
    ],
)
def test_what_is_in_use_is_not_freed(
    backend: str, start: Callable[[Axdimm, Stream], Held], tmp_path: Path
) -> None:
    with Axdimm(backend, options=BackendOptions(settings={"rules": ("sgd",)})) as device:
        (tmp_path / "nvme").write_bytes(bytes(1 << 20))
        device.RegisterStorage(tmp_path / "nvme")
        operation, needed = start(device, device.stream(0))
        for free, pointer in needed:
            with pytest.raises(BusyError, match=r"is in use by .*: wait for the end first"):
                free(pointer)
        operation.wait()
        for free, pointer in needed:
            free(pointer)


def test_what_one_of_many_operations_needs_is_in_use() -> None:
    with Axdimm("golden") as device:
        there = device.MallocAxdimm(NBYTES, 0)
        for count in range(1, 40):
            copy = device.MemcpyAxdimm2Host(
                bytearray(64), there, 64, stream=device.stream(0), modes="wait"
            )
            with pytest.raises(BusyError) as caught:
                device.FreeAxdimm(there)
            users = caught.value.details["users"]
            assert isinstance(users, tuple)
            assert len(users) == count
        copy.wait()
        device.FreeAxdimm(there)


def test_what_is_over_ahead_of_the_programs_time_is_in_use() -> None:
    with Axdimm("cycles") as device:
        one, other = device.MallocHost(NBYTES), device.MallocGpu(NBYTES)
        operation = device.MemcpyHost2Gpu(other, one, NBYTES, stream=device.stream(0))
        freed: list[bool] = []
        operation.add_done_callback(lambda: freed.append(device.FreeHost(one) is None))
        beside = device.MallocAxdimm(64, 1)
        device.MemcpyAxdimm2Host(bytearray(64), beside, 64, stream=device.stream(1)).wait()
        assert operation.over
        assert operation.time > device.transport.domain.clock.now
        assert freed == [True]  # a callback's time is that of the end
        with pytest.raises(BusyError, match=f"MemcpyHost2Gpu of {NBYTES} bytes: wait for the end"):
            device.FreeGpu(other)
        operation.wait()
        device.FreeGpu(other)
