"""cocotb tests of the walker: every segment of directed and random walks, and when it comes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from hw.pim.bank.move.walker import walked_layout
from hw.pim.config import PIM_PRESETS
from hw.pim.work.layouts import Jobs
from hw_tests.bench import bench_parameters
from hw_tests.pim.bank.walks import Segment, Walk, random_walk, segments_of
from hw_tests.side_by_side import Side
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, unpack, value_of

CONTEXT_BITS = bench_parameters()["context_bits"]
LATENCY_CYCLES = 7


class TB:
    """One of the walkers, after reset."""

    def __init__(self, dut: Any, name: str, stalls: str) -> None:
        self.config = PIM_PRESETS[name]
        self.jobs = Jobs(self.config)
        self.words = 1 << self.jobs.word_bits
        self.dut = dut
        side = Side(dut, name)
        self._side = side
        self.source = StreamSource(side, "i", dut.clk, pause=STALLS[stalls])
        self.sink = StreamSink(side, "o", dut.clk, pause=STALLS[stalls])

    async def reset(self) -> None:
        cocotb.start_soon(Clock(self.dut.clk, 3200, unit="ps").start())
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        cocotb.start_soon(self._count())

    async def _count(self) -> None:
        """The context of a walk is its number."""
        taken = 0
        while True:
            self._side.context.value = taken % (1 << CONTEXT_BITS)
            await RisingEdge(self.dut.clk)
            taken += value_of(self._side.i_valid) & value_of(self._side.i_ready)

    async def check(self, walks: Iterable[Walk]) -> list[list[int]]:
        """Sends the walks and compares every segment; the cycles in which those of each came."""
        walks = list(walks)
        expected = []
        for number, walk in enumerate(walks):
            context = number % (1 << CONTEXT_BITS)
            self.source.queue.append(walk.packed(self.jobs))
            expected.append([(segment, context) for segment in segments_of(walk, self.words)])
        total = sum(map(len, expected))
        for _ in range(20 * (total + 10 * len(walks)) + 100):
            await RisingEdge(self.dut.clk)
            if len(self.sink.taken) >= total:
                break
        await ClockCycles(self.dut.clk, 20)
        taken = iter(zip(self.sink.taken, self.sink.cycles, strict=True))
        cycles = []
        for walk, segments in zip(walks, expected, strict=True):
            cycles.append([])
            for segment in segments:
                payload, cycle = next(taken, (None, 0))
                assert payload is not None, f"{walk}: no segment, expected {segment}"
                found = self.segment(payload)
                assert found == segment, f"{walk}:\n{found}, expected\n{segment}"
                cycles[-1].append(cycle)
        assert next(taken, None) is None
        return cycles

    def segment(self, payload: int) -> tuple[Segment, int]:
        walked = unpack(walked_layout(self.config, CONTEXT_BITS), payload)
        values = unpack(self.jobs.segment, walked["segment"])
        values["step"] -= 4 * (values["step"] >> 1)
        if values["zero"]:
            values["address"] = 0
        return Segment(**values), walked["context"]


@cocotb.test(timeout_time=10, timeout_unit="ms")
@cocotb.parametrize((("name", "stalls", "count"), bench_parameters()["runs"]))
async def random_walks(dut: Any, name: str, stalls: str, count: int) -> None:
    """Also that the segments of a walk come one a cycle, whatever it is, if they are taken."""
    tb = TB(dut, name, stalls)
    await tb.reset()
    rng = random.Random(f"walks {name} {stalls}")
    longest = tb.config.second_words
    walks = [random_walk(rng, tb.words, longest) for _ in range(count)]
    cycles = await tb.check(walks)
    if stalls == "none":
        for walk, each in zip(walks, cycles, strict=True):
            assert each[-1] - each[0] == len(each) - 1, walk


DENSE = Walk(address=64, vectors=16, group_size=8, vector=64, length=64, column=1)


IMAGE = Walk(address=700, length=24, column=1, bounded=1, height=9, width=9)
ROWS = Walk(address=700, vectors=2, vector=90, length=24, column=1, row_wrap=1, channel_wrap=40)
# Outputs of a padded image of two channels, from the middle of an output row on.
LINES = Walk(
    address=4000, vectors=21, group_size=16, vector=1, length=18, column=1, columns=3, rows=3,
    row_wrap=8, channel_wrap=68, bounded=1, y=-1, x=3, height=9, width=10, line=10, line_left=6,
    line_wrap=1, line_x=-1,
)  # fmt: skip
EDGES = [
    # The image begins and ends inside of a row.
    replace(IMAGE, x=-3, width=5),
    replace(
        IMAGE, x=-3, width=5, vectors=20, group_size=9, vector=1, across=1, length=2, column=40
    ),
    # Coordinates that have left the image for good, by steps as large as they come.
    replace(IMAGE, x=1, width=65535, dilation=65535),
    replace(IMAGE, y=1, height=65535, dilation=65535, columns=1, rows=30, row_wrap=3),
    replace(IMAGE, vectors=30, group_size=4, vector=5, length=1, width=65535, vector_x=65535),
    replace(IMAGE, x=(1 << 40) + 5, y=(1 << 40) + 5),
    # Rows longer than any vector, of which the low bits say less.
    replace(ROWS, columns=(1 << 20) + 3, row_wrap=9),
    replace(ROWS, columns=(1 << 20) + 3, row_wrap=9, tap_column=(1 << 20) - 2),
    replace(ROWS, columns=1 << 12, rows=1 << 12, tap_column=3),
    replace(ROWS, columns=1 << 12, rows=1 << 12, tap_column=(1 << 12) - 2, tap_row=(1 << 12) - 1),
    # Rows that are one, and channels, too.
    replace(ROWS, columns=3, rows=3, tap_column=1, tap_row=1),
    replace(ROWS, columns=3, rows=3, tap_column=1, tap_row=1, channel_wrap=1),
    replace(ROWS, columns=3, rows=3, row_wrap=-4, channel_wrap=1),
    *(
        replace(each, across=across)
        for across in range(2)
        for each in (
            LINES,
            # Neighbours in memory in the order of the vectors, or not.
            replace(LINES, bounded=0),
            replace(LINES, bounded=0, line=3, line_left=2, line_wrap=100),
            # Several lines in a group; lines of one vector; all but the last in one.
            replace(LINES, line=2, line_left=1, line_wrap=9),
            replace(LINES, line=1, line_left=1, line_wrap=10),
            replace(LINES, line=1, line_left=20, line_wrap=-7),
            replace(LINES, vectors=128, length=1, line=1, line_left=127, line_wrap=-7),
            # Lines that end with groups, and with the walk.
            replace(LINES, vectors=24, group_size=8, line=8, line_left=8, line_wrap=3),
            replace(LINES, vectors=24, group_size=12, line=4, line_left=4, line_wrap=7),
            replace(LINES, vectors=16, line=5, line_left=6, line_wrap=6),
            # The padding below, and outputs and taps that are some elements from one another.
            replace(LINES, y=7, line=5, line_left=5, line_wrap=6),
            replace(LINES, vector=2, vector_x=2, line=5, line_left=3, line_wrap=12),
            replace(LINES, column=2, row_wrap=16, dilation=2, y=-2, x=-2, line_x=-2),
            # Outside of the image, but for the taps of column 0; lines that leave it for good.
            replace(
                LINES,
                y=0,
                x=3 + 2**17,
                line_x=2**17,
                dilation=2**16 - 1,
                tap_column=2,
                columns=4,
                rows=1,
            ),
            replace(LINES, line_x=(1 << 40) + 5),
            replace(LINES, y=1, vector_x=65535, height=65535, line=1, line_left=2),
        )
    ),
]


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(name=sorted({name for name, _, _ in bench_parameters()["runs"]}))
async def edges(dut: Any, name: str) -> None:
    tb = TB(dut, name, "none")
    await tb.reset()
    await tb.check(EDGES)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def cycles_of_walks(dut: Any) -> None:
    """The first segment's latency; walks that follow one another, without and with a gap."""
    tb = TB(dut, "tiny", "none")
    await tb.reset()
    latency: list[int] = []

    async def watch() -> None:
        side, cycles = Side(dut, "tiny"), 0
        while not value_of(side.o_valid):
            cycles += bool(cycles) or value_of(side.i_valid)
            await RisingEdge(dut.clk)
        latency.append(cycles)

    cocotb.start_soon(watch())
    dense = Walk(address=64, vectors=16, group_size=8, vector=64, length=64, column=1)
    image = Walk(
        address=0, vectors=8, group_size=8, vector=1, length=9, across=1, column=1, row_wrap=30,
        channel_wrap=500, columns=3, rows=3, bounded=1, height=32, width=32,
    )  # fmt: skip
    one = Walk(address=9)
    cycles = await tb.check([dense, dense, image, image, dense, one, one, dense])
    assert [len(each) for each in cycles] == [128, 128, 15, 15, 128, 1, 1, 128]
    gaps = [after[0] - before[-1] - 1 for before, after in itertools.pairwise(cycles)]
    dut._log.info("latency %s, gaps %s", latency, gaps)
    assert latency == [LATENCY_CYCLES]
    assert gaps == [0, 0, 0, 0, 0, 0, 1]
