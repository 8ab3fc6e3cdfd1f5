"""cocotb tests of the crossbar.

The design holds one for each of the parameter ``sizes`` (inputs, outputs), under its name. A
payload of a test is the number of its input and, above, how many the input gave before it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import groupby, pairwise
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from hw.pim.memory.crossbar import crossbar_layout
from hw_tests.bench import bench_parameters
from hw_tests.side_by_side import Side
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, pack, value_of

SIZES: dict[str, tuple[int, int]] = bench_parameters()["sizes"]
_INPUT_BITS = 4


class TB:
    """One of the crossbars after reset."""

    def __init__(self, dut: Any, name: str, *, i_stalls: str = "none", o_stalls: str = "none"):
        self.dut = Side(dut, name)
        self.inputs, self.outputs = SIZES[name]
        self.layout = crossbar_layout(16, self.outputs)
        self.sources = [
            StreamSource(self.dut, f"i_{number}", dut.clk, pause=STALLS[i_stalls])
            for number in range(self.inputs)
        ]
        self.sinks = [
            StreamSink(self.dut, f"o_{number}", dut.clk, pause=STALLS[o_stalls])
            for number in range(self.outputs)
        ]
        # By input and output.
        self.given: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.count = [0] * self.inputs

    async def reset(self) -> None:
        cocotb.start_soon(Clock(self.dut.clk, 2, unit="ns").start())
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        await ClockCycles(self.dut.clk, 2)

    def give(self, number: int, to: int, *, follows: bool = False) -> None:
        payload = number | self.count[number] << _INPUT_BITS
        self.count[number] += 1
        self.given[number, to].append(payload)
        word = pack(self.layout, to=to, follows=int(follows), payload=payload)
        self.sources[number].queue.append(word)

    @property
    def arrived(self) -> int:
        return sum(len(sink.taken) for sink in self.sinks)

    async def all_arrived(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            await RisingEdge(self.dut.clk)
            if self.arrived == sum(self.count):
                return
        raise AssertionError(f"{self.arrived} of {sum(self.count)} arrived")

    def check(self) -> None:
        """All arrived where they should, those of an input in order."""
        for to, sink in enumerate(self.sinks):
            for number in range(self.inputs):
                mine = [each for each in sink.taken if each % (1 << _INPUT_BITS) == number]
                assert mine == self.given[number, to]
            assert len(sink.taken) == sum(
                len(self.given[number, to]) for number in range(self.inputs)
            )

    def movers(self, to: int) -> list[int]:
        """The input of each payload of an output."""
        return [each % (1 << _INPUT_BITS) for each in self.sinks[to].taken]


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(size=list(SIZES), i_stalls=list(STALLS), o_stalls=list(STALLS))
async def everything_arrives(dut: Any, size: str, i_stalls: str, o_stalls: str) -> None:
    tb = TB(dut, size, i_stalls=i_stalls, o_stalls=o_stalls)
    await tb.reset()
    assert value_of(tb.dut.idle)
    rng = random.Random(f"{size} {i_stalls} {o_stalls}")
    for number in range(tb.inputs):
        while tb.count[number] < 120:
            to = rng.randrange(tb.outputs)
            for place in range(rng.choice((1, 1, 3, 9))):
                tb.give(number, to, follows=place > 0)
    for _ in range(20_000):
        await RisingEdge(tb.dut.clk)
        if tb.arrived == sum(tb.count):
            break
        # Offered ones are in the queue until they are taken, and seen a cycle later.
        waiting = sum(len(source.queue) for source in tb.sources)
        if waiting + tb.arrived < sum(tb.count) - tb.inputs - tb.outputs:
            assert not value_of(tb.dut.idle)
    tb.check()
    await ClockCycles(tb.dut.clk, 2)
    assert value_of(tb.dut.idle)


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(size=list(SIZES))
async def latency_and_pace(dut: Any, size: str) -> None:
    """Three cycles, one payload a cycle, and inputs with outputs of their own do not meet."""
    tb = TB(dut, size)
    await tb.reset()
    for number in range(tb.inputs):
        for to in range(tb.outputs):
            tb.give(number, to)
            while not int(getattr(tb.dut, f"i_{number}_valid").value):
                await RisingEdge(tb.dut.clk)
            # It went in at the edge that was just seen.
            busy = []
            while not int(getattr(tb.dut, f"o_{to}_valid").value):
                busy.append(not value_of(tb.dut.idle))
                await RisingEdge(tb.dut.clk)
            assert busy == [False, True, True]
            await ClockCycles(tb.dut.clk, 4)
            assert value_of(tb.dut.idle)
    pairs = min(tb.inputs, tb.outputs)
    before = [len(sink.taken) for sink in tb.sinks]
    for number in range(pairs):
        for _ in range(100):
            tb.give(number, (number + 1) % pairs)
    await tb.all_arrived()
    for sink, first in zip(tb.sinks[:pairs], before, strict=False):
        assert sink.cycles[-1] - sink.cycles[first] == 99
    tb.check()


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(size=[name for name, (inputs, _) in SIZES.items() if inputs > 1])
async def takes_in_turn(dut: Any, size: str) -> None:
    """Each input once in each round, and with all that follows."""
    tb = TB(dut, size)
    to = tb.outputs - 1
    await tb.reset()
    for number in range(tb.inputs):
        for _ in range(30):
            tb.give(number, to)
    await tb.all_arrived()
    movers = tb.movers(to)
    for first in range(0, len(movers), tb.inputs):
        assert movers[first : first + tb.inputs] == movers[: tb.inputs]
    assert sorted(movers[: tb.inputs]) == list(range(tb.inputs))
    assert tb.sinks[to].cycles[-1] - tb.sinks[to].cycles[0] == len(movers) - 1

    for number in range(tb.inputs):
        for _ in range(10):
            for place in range(1 + number):
                tb.give(number, to, follows=place > 0)
    await tb.all_arrived()
    runs = tb.movers(to)[len(movers) :]
    found = [runs[0], *(after for before, after in pairwise(runs) if after != before)]
    assert sorted(found[: tb.inputs]) == list(range(tb.inputs))
    assert found == found[: tb.inputs] * 10
    tb.check()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def pause_ends_a_run(dut: Any) -> None:
    """What follows after others came in between waits for its turn, and then goes on."""
    tb = TB(dut, "narrowing")
    await tb.reset()
    late = tb.inputs - 1
    for number in range(late):
        for _ in range(60):
            tb.give(number, 0)
    for pause in range(9, 14):
        tb.give(late, 0)
        await ClockCycles(tb.dut.clk, pause)
        for _ in range(3):
            tb.give(late, 0, follows=True)
        await ClockCycles(tb.dut.clk, 12)
    await tb.all_arrived()
    movers = tb.movers(0)
    runs = [(number, len(list(run))) for number, run in groupby(movers)]
    assert [length for number, length in runs if number == late] == [1, 3] * 5
    order = [number for number, _ in runs]
    assert {before for before, after in pairwise(order) if after == late} == {late - 1}
    tb.check()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def refusing_output_stops_only_its_inputs(dut: Any) -> None:
    tb = TB(dut, "widening")
    await tb.reset()
    tb.sinks[0].pause = 1.0
    await ClockCycles(tb.dut.clk, 2)
    for _ in range(50):
        tb.give(0, 0)
        tb.give(1, 1)
    for _ in range(20):
        tb.give(2, 2)
    tb.give(2, 0)
    tb.give(2, 2)
    await ClockCycles(tb.dut.clk, 80)
    assert [len(sink.taken) for sink in tb.sinks] == [0, 50, 20, 0, 0]
    # Six are inside: four behind the output, two behind the input.
    assert len(tb.sources[0].queue) == 44
    tb.sinks[0].pause = 0.0
    await tb.all_arrived()
    tb.check()
