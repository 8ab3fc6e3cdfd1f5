"""cocotb tests of the calculator: a random program on many descriptors."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, ReadOnly

from hw_tests.bench import bench_parameters
from hw_tests.pim.front.calculator_model import random_program
from sw_driver.pim.backends.calculator import CalculatorModel

PARAMETERS = bench_parameters()


def random_word(rng: random.Random) -> int:
    wide = rng.getrandbits(32) >> rng.randrange(33)
    return rng.choice((0, 1, (1 << 32) - 1, 1 << 31, (1 << 31) - 1, wide, wide, wide))


@cocotb.test()
async def test_program(dut: Any) -> None:
    """Every value and the number of cycles are those of the model."""
    rng = random.Random(PARAMETERS["seed"])
    model = CalculatorModel(random_program(PARAMETERS["seed"], PARAMETERS["length"]))
    dut.start.value = 0
    dut.word_write_enable.value = 0
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    await ClockCycles(dut.clk, 2)
    await FallingEdge(dut.clk)
    dut.rst.value = 0
    for _ in range(PARAMETERS["runs"]):
        words = [random_word(rng) for _ in range(48)]
        dut.word_write_enable.value = 1
        for index in range(24):
            dut.word_write_index.value = index
            dut.word_write_data.value = words[2 * index] | words[2 * index + 1] << 32
            await FallingEdge(dut.clk)
        dut.word_write_enable.value = 0
        want = model.run(words)
        got: list[tuple[int, int]] = []
        dut.start.value = 1
        for cycle in range(1, model.cycles + 1):
            await ReadOnly()
            if dut.value_write_enable.value:
                number = dut.value_write_data.value.to_signed()
                got.append((int(dut.value_write_address.value), number))
            assert int(dut.busy.value) == (cycle > 1)
            assert int(dut.done.value) == (cycle == model.cycles)
            await FallingEdge(dut.clk)
            dut.start.value = 0
        assert not dut.busy.value
        assert got == want
