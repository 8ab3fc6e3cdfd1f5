"""The lanes alone: when they begin, the shape of their work, and its results.

Parameters: ``name`` of the lanes in the design, ``lanes``, ``block_beats``, ``round_bits`` (bits of
the field ``last_round``), ``latency`` of the unit. The unit is that of
:mod:`hw_tests.kernel.plain_rule`; there are two buffers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from numpy.typing import NDArray

from hw_tests.bench import bench_parameters
from hw_tests.kernel.plain_rule import PLAIN_REFERENCE
from hw_tests.side_by_side import Side
from hw_tests.stalls import STALLS, pauses
from hw_tests.streams import StreamSource

PARAMETERS = bench_parameters()
NAME: str = PARAMETERS["name"]
PARTS: int = 16 // PARAMETERS["lanes"]
BLOCK: int = PARAMETERS["block_beats"]
LATENCY: int = PARAMETERS["latency"]
BETA1, LR = np.float32(0.75), np.float32(0.03125)


def words(beats: NDArray[np.float32]) -> list[int]:
    """Each row of 16 numbers as one payload."""
    return [int.from_bytes(row.tobytes(), "little") for row in beats]


class Bench:
    """Sources for the operands, records of what happens at the outputs."""

    def __init__(self, dut: Any, beats: int, *, stalls: str = "none") -> None:
        self.dut = dut
        for name in ("load", "start", "loaded", "stored", "stop"):
            getattr(dut, name).value = 0
        dut.rst.value = 1
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
        dut.constants_beta1.value = int(BETA1.view(np.uint32))
        dut.constants_lr.value = int(LR.view(np.uint32))
        numbers = np.random.default_rng(cocotb.RANDOM_SEED)
        data = {name: numbers.normal(0, 1, (beats, 16)).astype(np.float32) for name in "pgmv"}
        results = PLAIN_REFERENCE.step(data, {"beta1": BETA1, "lr": LR})
        self.expected = {name: words(results[name]) for name in "pmv"}
        self.got: dict[str, list[int]] = {name: [] for name in "pmv"}
        self.taken: list[int] = []
        self.given: list[int] = []
        self.freed: list[int] = []
        self.filled: list[int] = []
        self.cycle = 0
        for name in "pgmv":
            source = StreamSource(
                dut, f"i_{name}", dut.clk, pause=STALLS[stalls], seed=cocotb.RANDOM_SEED
            )
            source.queue.extend(words(data[name]))
        dut.rounds.value = (beats - 1) // BLOCK | ((beats - 1) % BLOCK + 1) << PARAMETERS[
            "round_bits"
        ]

    async def begin(self) -> None:
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        cocotb.start_soon(self._watch())
        await ClockCycles(self.dut.clk, 3)
        # What is only loaded does not begin.
        self.dut.load.value = 1
        await ClockCycles(self.dut.clk, 3)
        assert int(self.dut.idle.value)
        await self.pulse("start")
        self.dut.load.value = 0

    async def pulse(self, name: str) -> None:
        getattr(self.dut, name).value = 1
        await RisingEdge(self.dut.clk)
        getattr(self.dut, name).value = 0

    async def _watch(self) -> None:
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            self.cycle += 1
            if int(dut.i_p_ready.value):
                self.taken.append(self.cycle)
            for name, log in (("freed", self.freed), ("filled", self.filled)):
                if int(getattr(dut, name).value):
                    log.append(self.cycle)
            if int(dut.o_p_valid.value):
                self.given.append(self.cycle)
                for name, log in self.got.items():
                    assert int(getattr(dut, f"o_{name}_valid").value)
                    log.append(int(getattr(dut, f"o_{name}_payload").value))

    def check_results(self, beats: int) -> None:
        for name, got in self.got.items():
            assert got == self.expected[name][:beats], name
        assert self.given == [cycle + 1 + LATENCY for cycle in self.taken]


def is_even(cycles: list[int], distance: int) -> bool:
    return all(later - earlier == distance for earlier, later in pairwise(cycles))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def rounds_without_bubbles(dut: Any) -> None:
    """With all there, several rounds pass in one go, a beat in 16 / lanes cycles."""
    dut = Side(dut, NAME)
    beats = BLOCK + BLOCK - 1
    bench = Bench(dut, beats)
    await bench.begin()
    await bench.pulse("loaded")
    await bench.pulse("loaded")
    await ClockCycles(dut.clk, PARTS * beats + LATENCY + 8)
    assert len(bench.taken) == beats
    assert is_even(bench.taken, PARTS)
    bench.check_results(beats)
    first, ends = bench.taken[0] - 1, [bench.taken[BLOCK - 1], bench.taken[-1]]
    assert bench.freed == ([first, first + BLOCK] if PARTS == 1 else ends)
    assert bench.filled == [bench.given[BLOCK - 1], bench.given[-1]]
    assert int(dut.idle.value)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def waits_for_operands_and_room(dut: Any) -> None:
    """A round begins when it is complete and its results have room, and not before."""
    dut = Side(dut, NAME)
    beats = 4 * BLOCK
    bench = Bench(dut, beats)
    await bench.begin()
    pause = PARTS * BLOCK + LATENCY + 8
    await ClockCycles(dut.clk, pause)
    assert not bench.taken
    for done in (1, 2):
        await bench.pulse("loaded")
        await ClockCycles(dut.clk, pause)
        assert len(bench.taken) == done * BLOCK
        assert not int(dut.idle.value), "rounds are to come"
    await bench.pulse("loaded")
    await bench.pulse("loaded")
    await ClockCycles(dut.clk, pause)
    assert len(bench.taken) == 2 * BLOCK, "began without room for the results"
    await bench.pulse("stored")
    await ClockCycles(dut.clk, pause)
    assert len(bench.taken) == 3 * BLOCK
    await bench.pulse("stored")
    await ClockCycles(dut.clk, pause)
    bench.check_results(beats)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def stop_lets_the_round_end(dut: Any) -> None:
    """The round at work is completed, the next is not taken up."""
    dut = Side(dut, NAME)
    bench = Bench(dut, 2 * BLOCK)
    await bench.begin()
    await bench.pulse("loaded")
    await bench.pulse("loaded")
    await ClockCycles(dut.clk, 2)
    dut.stop.value = 1
    await RisingEdge(dut.clk)
    assert not int(dut.idle.value)
    await ClockCycles(dut.clk, 2 * PARTS * BLOCK + LATENCY + 8)
    assert int(dut.idle.value)
    assert len(bench.taken) == BLOCK
    bench.check_results(BLOCK)


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(i_stalls=list(STALLS), o_stalls=list(STALLS))
async def rounds_with_stalls(dut: Any, i_stalls: str, o_stalls: str) -> None:
    """Operands with gaps, also within a beat; rounds told late; room that comes back late.

    The outputs have no backpressure but the room: a round may begin only if at most one other has
    not been stored.
    """
    dut = Side(dut, NAME)
    # Enough for every event to meet every other in a cycle.
    rounds = 60
    beats = BLOCK * rounds - 1
    bench = Bench(dut, beats, stalls=i_stalls)
    loads = pauses(STALLS[i_stalls], "loads")
    stores = pauses(STALLS[o_stalls], "stores")
    await bench.begin()
    loaded = stored = 0
    for _ in range(400 * PARTS * beats):
        # A round is told when its predecessors are freed but for one, as from two buffers.
        room = loaded < rounds and loaded < len(bench.freed) + 2
        # The last two find room only if none was lost before.
        done = stored < len(bench.filled) and (stored < rounds - 2 or len(bench.taken) == beats)
        dut.loaded.value = int(load := room and not next(loads))
        dut.stored.value = int(store := done and not next(stores))
        await RisingEdge(dut.clk)
        loaded += load
        stored += store
        assert len(bench.taken) <= BLOCK * min(loaded, stored + 2), "no operands or no room"
        if stored == rounds:
            break
    dut.loaded.value = 0
    dut.stored.value = 0
    assert len(bench.taken) == beats
    bench.check_results(beats)
    begins, ends = bench.taken[::BLOCK], [*bench.taken[BLOCK - 1 :: BLOCK], bench.taken[-1]]
    if PARTS == 1:
        # Taken up behind the round before, if not waiting for it.
        bounds = zip([0, *ends], bench.freed, begins, strict=False)
        assert all(before <= freed < begin for before, freed, begin in bounds)
        assert len(bench.freed) == rounds
    else:
        assert bench.freed == ends
    assert bench.filled == [*bench.given[BLOCK - 1 :: BLOCK], bench.given[-1]]
    blocks = [bench.taken[place : place + BLOCK] for place in range(0, beats, BLOCK)]
    even = all(is_even(block, PARTS) for block in blocks)
    assert even == (i_stalls == "none"), "the stalls do not reach the lanes"
    await ClockCycles(dut.clk, 2)
    assert int(dut.idle.value)
