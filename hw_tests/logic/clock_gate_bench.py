"""Clock gate: data passes between the clock and the gated clock without loss or repetition."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def gated_registers_are_registers_with_an_enable(dut: Any) -> None:
    """A gated pipeline and the same with clock-enables never differ."""
    rng = random.Random(cocotb.RANDOM_SEED)
    dut.rst.value = 1
    dut.i.value = 0
    dut.enable.value = 0
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    await ClockCycles(dut.clk, 3)
    dut.rst.value = 0
    seen = set()
    for _ in range(4000):
        await RisingEdge(dut.clk)
        assert int(dut.gated_o.value) == int(dut.enabled_o.value)
        assert int(dut.gated_back.value) == int(dut.enabled_back.value)
        assert int(dut.gated_edges.value) == int(dut.enabled_edges.value)
        seen.add(int(dut.gated_o.value))
        dut.i.value = rng.getrandbits(16)
        dut.enable.value = int(rng.random() < 0.5)
    assert len(seen) > 1500


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def an_enabled_unit_stands_when_a_gated_one_does(dut: Any) -> None:
    """Whatever is in flight: their outputs never differ."""
    rng = random.Random(cocotb.RANDOM_SEED)
    dut.rst.value = 1
    dut.i.value = 0
    dut.enable.value = 1
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    await ClockCycles(dut.clk, 100)
    dut.rst.value = 0
    seen = set()
    for _ in range(4000):
        await RisingEdge(dut.clk)
        assert int(dut.gated_y.value) == int(dut.enabled_y.value)
        assert int(dut.gated_valid.value) == int(dut.enabled_valid.value)
        seen.add(int(dut.gated_y.value))
        # Numbers of similar size, with their halves exchanged too.
        dut.i.value = rng.getrandbits(32) & ~0x7F007F00 | 0x3F003F00
        dut.enable.value = int(rng.random() < 0.5)
    assert len(seen) > 1500
