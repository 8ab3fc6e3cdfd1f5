"""Block loader and block writer, each on its own account, on one memory.

Parameters: ``tensors``, ``block_beats``, ``buffer_blocks``, ``uneven``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
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
ALL = (1 << 64) - 1

DIVISORS: list[Sequence[int]] = (
    [
        (1, 2, 4, 4, 64),
        (0, 2, 1, 64, 4),
        (4, 0, 0, 1, 64),
        (64, 1, 2, 0, 0),
        (0, 0, 1, 0, 0),
        (0, 0, 0, 0, 64),
    ]
    if PARAMETERS["uneven"]
    else [(1,) * TENSORS]
)
"""For each tensor, which part of a block it has in a round; 0: the tensor is absent."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is moved: as much of each tensor as belongs to ``widest`` beats of whole blocks."""

    divisors: Sequence[int]
    widest: int

    @property
    def rounds(self) -> int:
        return -(-self.widest // BLOCK)

    @property
    def full(self) -> list[int]:
        """Beats of each tensor in a round."""
        return [max(1, BLOCK // each) if each else 0 for each in self.divisors]

    @property
    def beats(self) -> list[int]:
        """Beats of each tensor."""
        return [-(-self.widest * full // BLOCK) for full in self.full]


def expected_bursts(lines: list[int], run: Run) -> list[tuple[int, int]]:
    """(address, beats) of each burst in order: by blocks round-robin, cut at 4 KB."""
    bursts = []
    for index in range(run.rounds):
        for line, full, beats in zip(lines, run.full, run.beats, strict=True):
            at, end = line + index * full, line + min((index + 1) * full, beats)
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
        dut, edge, shown = self.dut, RisingEdge(self.dut.clk), False
        pulses = (dut.loaded, dut.stored, dut.load_error, dut.store_error)
        while True:
            await edge
            loaded, stored, load_error, store_error = map(value_of, pulses)
            self.loaded += loaded
            self.stored += stored
            self.errors += ["read"] * load_error + ["write"] * store_error
            hand_over = self.handed < self.loaded and not self.hold
            self.handed += hand_over
            if hand_over != shown:
                dut.hand_over.value = shown = hand_over

    async def start(
        self, run: Run, strobes: Sequence[int] = (ALL,) * TENSORS
    ) -> tuple[list[int], list[int]]:
        """Starts a run between random places, and says which."""
        dut = self.dut
        self.loaded = self.stored = self.handed = 0
        self.memory.reads.clear()
        self.memory.writes.clear()
        sources, targets = self._places(run.beats)
        for index, (full, beats) in enumerate(zip(run.full, run.beats, strict=True)):
            for name, value in (
                ("source", sources[index]),
                ("target", targets[index]),
                ("full", full),
                ("tail", beats - (run.rounds - 1) * full),
                ("last_strobes", strobes[index]),
            ):
                getattr(dut, f"{name}_{index}").value = value
        dut.present.value = sum(1 << index for index, full in enumerate(run.full) if full)
        dut.last_round.value = run.rounds - 1
        dut.start.value = 1
        dut.stop.value = 0
        await RisingEdge(dut.clk)
        dut.start.value = 0
        await RisingEdge(dut.clk)
        return sources, targets

    async def idle(self) -> None:
        edge, idle = RisingEdge(self.dut.clk), (self.dut.load_idle, self.dut.store_idle)
        for _ in range(60_000):
            await edge
            if all(map(value_of, idle)):
                break
        else:
            raise AssertionError("the mover does not come to rest")
        assert self.memory.quiet

    def _places(self, beats: list[int]) -> tuple[list[int], list[int]]:
        """Lines for all sources and targets, in random order and at random distances."""
        room = (MEMORY_LINES - 2 * sum(beats)) // (2 * TENSORS)
        lines, at = [0] * (2 * TENSORS), 0
        for place in self.rng.sample(range(2 * TENSORS), 2 * TENSORS):
            at += self.rng.randrange(room + 1)
            lines[place] = at
            at += beats[place % TENSORS]
        return lines[:TENSORS], lines[TENSORS:]


async def make_bench(dut: Any, **options: Any) -> Bench:
    bench = Bench(dut, **options)
    await bench.reset()
    return bench


def as_pairs(bursts: list[Burst]) -> list[tuple[int, int]]:
    return [(burst.address, burst.beats) for burst in bursts]


@cocotb.test(timeout_time=500, timeout_unit="us")
@cocotb.parametrize((("stalls", "habit"), SUBORDINATES), divisors=DIVISORS)
async def copies(dut: Any, stalls: str, habit: str, divisors: Sequence[int]) -> None:
    """Bursts, their order, data and strobes, for lengths around the block."""
    bench = await make_bench(dut, stalls=CHANNEL_STALLS[stalls], habit=habit)
    memory = bench.memory
    for widest in (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1):
        run = Run(divisors=divisors, widest=widest)
        bytes_of_last = [bench.rng.randrange(1, 65)] * TENSORS
        if PARAMETERS["uneven"]:
            bytes_of_last = [bench.rng.randrange(1, 65) for _ in range(TENSORS)]
        before = bench.contents.copy()
        sources, targets = await bench.start(run, [(1 << each) - 1 for each in bytes_of_last])
        expected = before.copy()
        for source, target, beats, last in zip(
            sources, targets, run.beats, bytes_of_last, strict=True
        ):
            size = max(0, 64 * (beats - 1) + last)
            expected[64 * target : 64 * target + size] = before[64 * source :][:size]
        await bench.idle()
        assert as_pairs(memory.reads) == expected_bursts(sources, run)
        assert as_pairs(memory.writes) == expected_bursts(targets, run)
        assert np.array_equal(bench.contents, expected), f"{run}"
        assert bench.loaded == bench.stored == run.rounds
        assert not bench.errors


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(stalls=["none", "random"], divisors=DIVISORS)
async def loads_no_more_than_there_is_room_for(
    dut: Any, stalls: str, divisors: Sequence[int]
) -> None:
    """As many rounds as the FIFOs hold are requested, without a pause, and not one more."""
    bench = await make_bench(dut, stalls=CHANNEL_STALLS[stalls])
    bench.hold = True
    run = Run(divisors=divisors, widest=(BUFFERS + 2) * BLOCK)
    sources, _ = await bench.start(run)
    await ClockCycles(dut.clk, 4 * BUFFERS * sum(run.full) + 100)
    memory = bench.memory
    assert bench.loaded == BUFFERS
    asked = expected_bursts(sources, run)
    assert sum(burst.beats for burst in memory.reads) == BUFFERS * sum(run.full)
    assert as_pairs(memory.reads) == asked[: len(memory.reads)]
    assert not memory.writes
    if stalls == "none":
        for cycles in ([burst.cycle for burst in memory.reads], memory.read_cycles):
            assert cycles == list(range(cycles[0], cycles[0] + len(cycles))), "not back to back"
    bench.hold = False
    await bench.idle()
    assert as_pairs(memory.reads) == asked


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(divisors=DIVISORS)
async def stores_without_a_bubble(dut: Any, divisors: Sequence[int]) -> None:
    """The data of a round leaves at one beat a cycle."""
    bench = await make_bench(dut)
    bench.hold = True
    run = Run(divisors=divisors, widest=2 * BLOCK)
    _, targets = await bench.start(run)
    await ClockCycles(dut.clk, sum(run.beats) + 100)
    bench.hold = False
    await bench.idle()
    cycles = bench.memory.write_cycles
    assert len(cycles) == sum(run.beats)
    if BUFFERS >= 2:
        assert cycles[-1] - cycles[0] == len(cycles) - 1
    bursts = [burst.cycle for burst in bench.memory.writes]
    first = len(expected_bursts(targets, Run(divisors=divisors, widest=BLOCK)))
    assert bursts[first - 1] - bursts[0] == first - 1


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def stops(dut: Any, stalls: str) -> None:
    """After ``stop`` what was issued is completed and nothing else issued; it can start again."""
    bench = await make_bench(dut, stalls=CHANNEL_STALLS[stalls])
    memory = bench.memory
    for _ in range(6):
        run = Run(divisors=bench.rng.choice(DIVISORS), widest=3 * BLOCK + 2)
        await bench.start(run)
        await ClockCycles(dut.clk, bench.rng.randrange(3 * sum(run.beats)))
        dut.stop.value = 1
        await ClockCycles(dut.clk, 2)
        reads, writes = len(memory.reads), len(memory.writes)
        await bench.idle()
        # One burst may have been at the port already.
        assert len(memory.reads) <= reads + 1
        assert len(memory.writes) <= writes + 1
        await ClockCycles(dut.clk, 20)
    run = Run(divisors=DIVISORS[0], widest=BLOCK + 1)
    sources, _ = await bench.start(run)
    await bench.idle()
    assert as_pairs(memory.reads) == expected_bursts(sources, run)
    assert bench.stored == 2


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def reports_errors(dut: Any) -> None:
    """One pulse for each failing beat read and each failing burst written."""
    bench = await make_bench(
        dut, read_error=lambda index: index in (0, 5), write_error=lambda index: index == 1
    )
    await bench.start(Run(divisors=DIVISORS[0], widest=2 * BLOCK))
    await bench.idle()
    assert sorted(bench.errors) == ["read", "read", "write"]
