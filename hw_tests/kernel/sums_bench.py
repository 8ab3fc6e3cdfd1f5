"""The sums alone, of whole lines. Parameters: ``subnormals`` and ``lanes``."""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from golden.rules import ordered_sum
from hw_tests.bench import bench_parameters

LINES = (1, 15, 16, 37)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def small_differences(dut: Any) -> None:
    """Numbers whose sums are flushed now and then, also to -0, which is kept if no line follows."""
    parameters = bench_parameters()
    subnormals, lanes = parameters["subnormals"], parameters["lanes"]
    rng = np.random.default_rng(1)
    for name in ("clear", "valid", "finish"):
        getattr(dut, name).value = 0
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0
    sums: dict[str, list[int]] = {"kept": [], "flushed": []}
    for number, lines in enumerate(LINES * 9):
        count = 16 * lines
        parts = rng.integers(-3, 4, count) * 2.0**-126 + rng.integers(-1, 2, count) * 2.0**-128
        values = parts.astype(np.float32)
        if number < len(LINES):
            values[:] = -0.0  # whose sum is +0
        for each, found in sums.items():
            found.append(int(ordered_sum(values, each).view(np.uint32)))
        await pulse(dut, dut.clear)
        dut.valid.value = 1
        for part in values.view(np.uint32).reshape(-1, lanes):
            for place, bits in enumerate(part.tolist()):
                getattr(dut, f"values_{place}").value = bits
            await RisingEdge(dut.clk)
        dut.valid.value = 0
        dut.finish.value = 1
        await FallingEdge(dut.busy)
        assert dut.sum.value.to_unsigned() == sums[subnormals][-1]
        dut.finish.value = 0
        await RisingEdge(dut.clk)
    assert sums["kept"] != sums["flushed"]


async def pulse(dut: Any, signal: Any) -> None:
    """A cycle of 1."""
    signal.value = 1
    await RisingEdge(dut.clk)
    signal.value = 0
