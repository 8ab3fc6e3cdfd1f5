"""cocotb tests of the pool's front: causes, spans, canonical forms, plans."""

from __future__ import annotations

from collections import Counter
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge, with_timeout
from cocotb.utils import get_sim_time

from golden.pim import Cause
from hw_tests.bench import bench_parameters
from hw_tests.pim.front.front_reference import FrontReference
from hw_tests.pim.front.front_works import Works, front_configurations, words_of

PARAMETERS = bench_parameters()
CONFIG = front_configurations()[PARAMETERS["name"]]
REFERENCE = FrontReference(CONFIG)
MOST_CYCLES = 1000


class Bench:
    """Offers descriptors and takes the results."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.cycles: list[int] = []
        self._pairs: list[int | None] = [None] * 24

    async def reset(self) -> None:
        dut = self.dut
        dut.rst.value = 1
        for name in ("start", "o_ready"):
            getattr(dut, name).value = 0
        dut.descriptor_write_enable.value = 0
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
        await ClockCycles(dut.clk, 2)
        await FallingEdge(dut.clk)
        dut.rst.value = 0

    async def write(self, index: int, pair: int) -> None:
        dut = self.dut
        dut.descriptor_write_enable.value = 1
        dut.descriptor_write_index.value = index
        dut.descriptor_write_data.value = pair
        await FallingEdge(dut.clk)
        dut.descriptor_write_enable.value = 0

    async def load(self, words: list[int]) -> None:
        """Writes those words that are not there yet."""
        for index, known in enumerate(self._pairs):
            pair = words[2 * index] | words[2 * index + 1] << 32
            if pair != known:
                await self.write(index, pair)
                self._pairs[index] = pair

    async def start(self) -> None:
        self.dut.start.value = 1
        await FallingEdge(self.dut.clk)
        self.dut.start.value = 0

    async def finished(self) -> None:
        await with_timeout(RisingEdge(self.dut.o_valid), 2 * 4 * MOST_CYCLES, "ns")
        await FallingEdge(self.dut.clk)

    def fields(self) -> dict[str, int]:
        return REFERENCE.unpack(int(self.dut.o_payload.value))

    async def take(self) -> None:
        self.dut.o_ready.value = 1
        await FallingEdge(self.dut.clk)
        self.dut.o_ready.value = 0

    async def run(self, words: list[int]) -> dict[str, int]:
        await self.load(words)
        begin = get_sim_time("ns")
        await self.start()
        await self.finished()
        self.cycles.append(int(get_sim_time("ns") - begin) // 2)
        fields = self.fields()
        await self.take()
        return fields

    async def check(self, words: list[int]) -> Cause:
        return REFERENCE.check(words, await self.run(words))


async def begin(dut: Any) -> tuple[Bench, Works]:
    bench = Bench(dut)
    await bench.reset()
    return bench, Works(CONFIG, PARAMETERS["seed"])


@cocotb.test()
async def test_works(dut: Any) -> None:
    """Good works, such that are at limits, and such that are refused."""
    bench, works = await begin(dut)
    causes: Counter[Cause] = Counter()
    for _ in range(PARAMETERS["works"]):
        causes[await bench.check(works.words())] += 1
    dut._log.info("causes %s, cycles %s", causes, max(bench.cycles))
    assert max(bench.cycles) <= MOST_CYCLES


@cocotb.test()
async def test_busy(dut: Any) -> None:
    """While it is busy, words and starts are ignored, and a result waits until it is taken."""
    bench, works = await begin(dut)
    words = words_of(works.small())
    while REFERENCE.cause(words):
        words = words_of(works.small())
    await bench.load(words)
    assert not dut.busy.value
    await bench.start()
    for index in range(24):
        assert dut.busy.value
        await bench.write(index, (1 << 64) - 1)
    await bench.start()
    await bench.finished()
    fields = bench.fields()
    for index in range(24):
        assert dut.busy.value
        assert dut.o_valid.value
        await bench.write(index, (1 << 64) - 1)
        await bench.start()
        assert bench.fields() == fields
    await bench.take()
    assert not dut.o_valid.value
    assert not dut.busy.value
    await ClockCycles(dut.clk, MOST_CYCLES)
    await FallingEdge(dut.clk)
    assert not dut.busy.value
    assert await bench.check(words) == Cause.NONE
    assert bench.fields() == fields
