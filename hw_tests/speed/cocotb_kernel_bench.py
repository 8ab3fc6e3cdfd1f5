"""Times the kernel's job under cocotb.

Parameters: ``preset``, ``rounds``, ``repetitions``, ``results``: where the times go, as JSON.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge

from hw_tests.axi_memory import AxiMemory
from hw_tests.bench import bench_parameters
from hw_tests.lite_master import LiteMaster
from hw_tests.speed.kernel_job import JobResult, KernelJob

PARAMETERS = bench_parameters()


@cocotb.test(timeout_time=1, timeout_unit="sec")
async def job(dut: Any) -> None:
    """Runs the job as often as asked for; the clock starts with START and ends with DONE."""
    work = KernelJob(KernelJob.config_of(PARAMETERS["preset"]), PARAMETERS["rounds"])
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 5, unit="ns").start())
    memory = AxiMemory(
        dut, "m_axi", dut.clk, np.zeros_like(work.memory), shared=True, reset=dut.rst
    ).memory
    registers = LiteMaster(dut, "s_axi", dut.clk)
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    await ClockCycles(dut.clk, 4)
    for offset, value in work.settings:
        await registers.write(offset, value)
    results = []
    for _ in range(PARAMETERS["repetitions"]):
        memory[:] = work.memory
        start = time.perf_counter()
        await registers.write(*work.start)
        await FallingEdge(dut.busy)
        seconds = time.perf_counter() - start
        work.check(memory)
        cycles, _ = await registers.read(work.cycles_offset)
        results.append(
            JobResult(parameters=work.parameters, fabric_cycles=cycles, host_seconds=seconds)
        )
    Path(PARAMETERS["results"]).write_text(json.dumps([asdict(result) for result in results]))
