"""A cocotb test that waits for what never comes."""

from __future__ import annotations

from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def hangs(dut: Any) -> None:
    """Nothing is ever put in, so nothing comes out."""
    dut.i_valid.value = 0
    Clock(dut.clk, 2, unit="ns").start()
    await RisingEdge(dut.o_valid)
