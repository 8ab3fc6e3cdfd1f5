"""cocotb side of the divider's test: every operand pair of a small format."""

from __future__ import annotations

from itertools import product
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from golden import floats
from hw_tests.bench import bench_parameters
from hw_tests.streams import value_of


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def exhaustive(dut: Any) -> None:
    """Every quotient and every root, against the exact model."""
    form = floats.BinaryFormat(**bench_parameters())
    numbers = range(1 << (1 + form.exponent_bits + form.fraction_bits))
    cocotb.start_soon(Clock(dut.clk, 2, unit="step").start())
    dut.rst.value = 0
    edge, answer = RisingEdge(dut.clk), RisingEdge(dut.o_valid)
    for root, a, b in [*product([0], numbers, numbers), *product([1], numbers, [0x38, 0])]:
        dut.i_valid.value, dut.i_root.value, dut.i_a.value, dut.i_b.value = 1, root, a, b
        await edge
        dut.i_valid.value = 0
        await answer
        expected = floats.sqrt(form, a) if root else floats.div(form, a, b)
        got = value_of(dut.o_y)
        assert got == expected, f"{root} {a:02x} {b:02x}: got {got:02x}, expected {expected:02x}"
        await edge
