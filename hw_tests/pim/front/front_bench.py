"""cocotb tests of the pool's front: causes, spans, canonical forms."""

from __future__ import annotations

from collections import Counter
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge, with_timeout
from cocotb.utils import get_sim_time

from golden.pim import Cause, Opcode
from hw_tests.bench import bench_parameters
from hw_tests.pim.front.front_reference import FrontReference
from hw_tests.pim.front.front_works import Works, front_configurations, words_of
from hw_tests.streams import value_of

PARAMETERS = bench_parameters()
CONFIG = front_configurations()[PARAMETERS["name"]]
REFERENCE = FrontReference(CONFIG)
CHECK_CYCLES = 64
BEATS = 6


class Bench:
    """Offers descriptors and takes the results."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.cycles: list[int] = []
        self._beats: list[int | None] = [None] * BEATS

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

    async def write(self, index: int, beat: int) -> None:
        dut = self.dut
        dut.descriptor_write_enable.value = 1
        dut.descriptor_write_index.value = index
        dut.descriptor_write_data.value = beat
        await FallingEdge(dut.clk)
        dut.descriptor_write_enable.value = 0

    async def load(self, words: list[int]) -> None:
        """Writes those beats that are not there yet."""
        for index, known in enumerate(self._beats):
            beat = sum(word << 32 * place for place, word in enumerate(words[8 * index :][:8]))
            if beat != known:
                await self.write(index, beat)
                self._beats[index] = beat

    async def start(self) -> None:
        self.dut.start.value = 1
        await FallingEdge(self.dut.clk)
        self.dut.start.value = 0

    async def finished(self) -> None:
        await with_timeout(RisingEdge(self.dut.o_valid), 2 * 4 * CHECK_CYCLES, "ns")
        await FallingEdge(self.dut.clk)

    def fields(self) -> dict[str, int]:
        return REFERENCE.unpack(value_of(self.dut.o_payload))

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
    accepted: Counter[int] = Counter()
    count = PARAMETERS["works"]
    for words in [*works.limits(), *(works.words() for _ in range(count))]:
        cause = await bench.check(words)
        causes[cause] += 1
        accepted[words[0]] += cause == Cause.NONE
    dut._log.info("causes %s", causes)
    assert set(bench.cycles) == {CHECK_CYCLES}
    # Of 32 banks there is none that could not be asked for.
    never = {Cause.BANKS} if CONFIG.banks == 32 else set[Cause]()
    assert {cause for cause in Cause if causes[cause] >= count // 50} == set(Cause) - never
    assert {opcode for opcode in Opcode if accepted[opcode] >= count // 30} == set(Opcode)


@cocotb.test()
async def test_canonical_forms(dut: Any) -> None:
    """Every result is made of the elements that the specification says, in its order."""
    bench, works = await begin(dut)
    seen: Counter[int] = Counter()
    while seen.total() < PARAMETERS["small"]:
        words = words_of(works.small())
        if REFERENCE.cause(words) == Cause.NONE:
            REFERENCE.check_products(words, await bench.run(words))
            seen[words[0]] += 1
    least = PARAMETERS["small"] // 30
    assert {opcode for opcode in Opcode if seen[opcode] >= least} == set(Opcode)


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
    for index in (*range(BEATS), *range(BEATS)):
        assert dut.busy.value
        await bench.write(index, (1 << 256) - 1)
    await bench.start()
    await bench.finished()
    fields = bench.fields()
    for index in (*range(BEATS), *range(BEATS)):
        assert dut.busy.value
        assert dut.o_valid.value
        await bench.write(index, (1 << 256) - 1)
        await bench.start()
        assert bench.fields() == fields
    await bench.take()
    assert not dut.o_valid.value
    assert not dut.busy.value
    await ClockCycles(dut.clk, 2 * CHECK_CYCLES)
    await FallingEdge(dut.clk)
    assert not dut.busy.value
    assert await bench.check(words) == Cause.NONE
    assert bench.fields() == fields
