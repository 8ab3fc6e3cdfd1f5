"""Block loader and block writer, each on its own account, on one memory.

Parameters: ``tensors``, ``block_beats``, ``buffer_blocks``.
"""

from __future__ import annotations

import random
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from hw_tests.axi_memory import CHANNEL_STALLS, SUBORDINATES, AxiMemory, Burst
from hw_tests.bench import bench_parameters
from hw_tests.stalls import STALLS
from hw_tests.streams import value_of

PARAMETERS = bench_parameters()
TENSORS: int = PARAMETERS["tensors"]
BLOCK: int = PARAMETERS["block_beats"]
BUFFERS: int = PARAMETERS["buffer_blocks"]
MEMORY_LINES = 1 << 12


def expected_bursts(lines: list[int], beats: int) -> list[tuple[int, int]]:
    """(address, beats) of each burst in order: by blocks round-robin, cut at 4 KB."""
    bursts = []
    for first in range(0, beats, BLOCK):
        for line in lines:
            at, end = line + first, line + min(first + BLOCK, beats)
            while at < end:
                cut = min(end, (at // 64 + 1) * 64)
                bursts.append((64 * at, cut - at))
                at = cut
    return bursts


class Bench:
    """The mover, its memory, and counts of its pulses."""

    def __init__(self, dut: Any, **options: Any) -> None:
        self.dut = dut
        self.rng = random.Random(cocotb.RANDOM_SEED)
        for name in ("start", "stop", "hand_over"):
            getattr(dut, name).value = 0
        dut.rst.value = 1
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
        numbers = np.random.default_rng(cocotb.RANDOM_SEED)
        self.contents = numbers.integers(0, 256, 64 * MEMORY_LINES, np.uint8)
        self.memory = AxiMemory(dut, "m_axi", dut.clk, self.contents, reset=dut.rst, **options)
        self.loaded = self.stored = self.handed = 0
        self.errors: list[str] = []
        self.hold = False
        """Rounds stay with the loader."""

    async def reset(self) -> None:
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            self.loaded += value_of(dut.loaded)
            self.stored += value_of(dut.stored)
            self.errors += ["read"] * value_of(dut.load_error)
            self.errors += ["write"] * value_of(dut.store_error)
            hand_over = self.handed < self.loaded and not self.hold
            self.handed += hand_over
            dut.hand_over.value = int(hand_over)

    async def start(self, sources: list[int], targets: list[int], beats: int, strobes: int) -> None:
        dut = self.dut
        for index in range(TENSORS):
            getattr(dut, f"source_{index}").value = sources[index]
            getattr(dut, f"target_{index}").value = targets[index]
        dut.last_round.value = (beats - 1) // BLOCK
        dut.tail_beats.value = (beats - 1) % BLOCK + 1
        dut.last_strobes.value = strobes
        dut.start.value = 1
        dut.stop.value = 0
        await RisingEdge(dut.clk)
        dut.start.value = 0
        await RisingEdge(dut.clk)

    async def idle(self) -> None:
        for _ in range(60_000):
            await RisingEdge(self.dut.clk)
            if value_of(self.dut.load_idle) and value_of(self.dut.store_idle):
                break
        else:
            raise AssertionError("the mover does not come to rest")
        assert self.memory.quiet

    def places(self, beats: int) -> tuple[list[int], list[int]]:
        """Lines for all sources and targets, in random order and at random distances."""
        room = (MEMORY_LINES - 2 * TENSORS * beats) // (2 * TENSORS)
        lines, at = [], 0
        for _ in range(2 * TENSORS):
            at += self.rng.randrange(room + 1)
            lines.append(at)
            at += beats
        self.rng.shuffle(lines)
        return lines[:TENSORS], lines[TENSORS:]


async def make_bench(dut: Any, **options: Any) -> Bench:
    bench = Bench(dut, **options)
    await bench.reset()
    return bench


def as_pairs(bursts: list[Burst]) -> list[tuple[int, int]]:
    return [(burst.address, burst.beats) for burst in bursts]


@cocotb.test(timeout_time=500, timeout_unit="us")
@cocotb.parametrize((("stalls", "habit"), SUBORDINATES))
async def copies(dut: Any, stalls: str, habit: str) -> None:
    """Bursts, their order, data and strobes, for lengths around the block."""
    bench = await make_bench(dut, stalls=CHANNEL_STALLS[stalls], habit=habit)
    memory = bench.memory
    for beats in (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1):
        sources, targets = bench.places(beats)
        bytes_of_last = bench.rng.randrange(1, 65)
        expected = bench.contents.copy()
        size = 64 * (beats - 1) + bytes_of_last
        for source, target in zip(sources, targets, strict=True):
            expected[64 * target : 64 * target + size] = bench.contents[64 * source :][:size]
        bench.loaded = bench.stored = bench.handed = 0
        memory.reads.clear()
        memory.writes.clear()
        await bench.start(sources, targets, beats, (1 << bytes_of_last) - 1)
        await bench.idle()
        assert as_pairs(memory.reads) == expected_bursts(sources, beats)
        assert as_pairs(memory.writes) == expected_bursts(targets, beats)
        assert np.array_equal(bench.contents, expected), f"{beats} beats"
        assert bench.loaded == bench.stored == -(-beats // BLOCK)
        assert not bench.errors


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(stalls=["none", "random"])
async def loads_no_more_than_there_is_room_for(dut: Any, stalls: str) -> None:
    """As many rounds as the FIFOs hold are requested, each without a pause, and not one more."""
    bench = await make_bench(dut, stalls=CHANNEL_STALLS[stalls])
    bench.hold = True
    beats = (BUFFERS + 2) * BLOCK
    sources, targets = bench.places(beats)
    await bench.start(sources, targets, beats, (1 << 64) - 1)
    await ClockCycles(dut.clk, 4 * TENSORS * BUFFERS * BLOCK + 100)
    memory = bench.memory
    assert bench.loaded == BUFFERS
    asked = expected_bursts(sources, beats)
    first = len(expected_bursts(sources, BLOCK))
    assert sum(burst.beats for burst in memory.reads) == TENSORS * BUFFERS * BLOCK
    assert as_pairs(memory.reads) == asked[: len(memory.reads)]
    assert not memory.writes
    if stalls == "none":
        cycles = [burst.cycle for burst in memory.reads[:first]]
        assert cycles == list(range(cycles[0], cycles[0] + first)), "bursts are not back to back"
    bench.hold = False
    await bench.idle()
    assert as_pairs(memory.reads) == asked


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def stores_without_a_bubble(dut: Any) -> None:
    """The data of a round leaves at one beat a cycle."""
    bench = await make_bench(dut)
    bench.hold = True
    beats = 2 * BLOCK
    sources, targets = bench.places(beats)
    await bench.start(sources, targets, beats, (1 << 64) - 1)
    await ClockCycles(dut.clk, TENSORS * beats + 100)
    bench.hold = False
    await bench.idle()
    cycles = bench.memory.write_cycles
    assert len(cycles) == TENSORS * beats
    if BUFFERS >= 2:
        assert cycles[-1] - cycles[0] == len(cycles) - 1
    bursts = [burst.cycle for burst in bench.memory.writes]
    first = len(expected_bursts(targets, BLOCK))
    assert bursts[first - 1] - bursts[0] == first - 1


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def stops(dut: Any, stalls: str) -> None:
    """After ``stop`` what was issued is completed and nothing else issued; it can start again."""
    bench = await make_bench(dut, stalls=CHANNEL_STALLS[stalls])
    memory = bench.memory
    for _ in range(6):
        beats = 3 * BLOCK + 2
        sources, targets = bench.places(beats)
        bench.loaded = bench.stored = bench.handed = 0
        await bench.start(sources, targets, beats, (1 << 64) - 1)
        await ClockCycles(dut.clk, bench.rng.randrange(3 * TENSORS * beats))
        dut.stop.value = 1
        await ClockCycles(dut.clk, 2)
        reads, writes = len(memory.reads), len(memory.writes)
        await bench.idle()
        # One burst may have been at the port already.
        assert len(memory.reads) <= reads + 1
        assert len(memory.writes) <= writes + 1
        await ClockCycles(dut.clk, 20)
    sources, targets = bench.places(BLOCK + 1)
    bench.loaded = bench.stored = bench.handed = 0
    memory.reads.clear()
    await bench.start(sources, targets, BLOCK + 1, (1 << 64) - 1)
    await bench.idle()
    assert as_pairs(memory.reads) == expected_bursts(sources, BLOCK + 1)
    assert bench.stored == 2


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def reports_errors(dut: Any) -> None:
    """One pulse for each failing beat read and each failing burst written."""
    bench = await make_bench(
        dut, read_error=lambda index: index in (0, 5), write_error=lambda index: index == 1
    )
    sources, targets = bench.places(2 * BLOCK)
    await bench.start(sources, targets, 2 * BLOCK, (1 << 64) - 1)
    await bench.idle()
    assert sorted(bench.errors) == ["read", "read", "write"]
