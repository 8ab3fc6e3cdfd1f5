"""cocotb tests of a channel on LiteDRAM, a controller that is not ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cocotb
import numpy as np

from golden.rules import reference
from hw_tests.axdimm.module_bench import ACCELERATION, LINE, TB, Job
from hw_tests.bench import bench_parameters
from hw_tests.side_by_side import Side

STAGGER_BYTES = 16384
TIMES = ("data", "refresh", "starved", "row", "turn_around", "idle")


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def steps_are_exact(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    for t, count in enumerate((513, tb.rng.randrange(1, 700)), 1):
        job = Job(tb.rng, count, t)
        await job.store(tb, 0)
        await job.begin(tb, 0)
        await job.end(tb, 0)
        times = [await tb.read_register(0, f"arbiter.{name}_tck") for name in TIMES]
        assert sum(times) == 4 * await tb.read_register(0, "cycles")
        await job.check(tb, 0)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def speed(dut: Any) -> None:
    """The same run on each side at the same time; its figures go into a file."""
    parameters = bench_parameters()
    count = parameters["count"]
    channels = {name: TB(Side(dut, name)) for name in parameters["sides"]}
    first, *others = channels.values()
    await first.start()
    for tb in others:
        cocotb.start_soon(tb.host.monitor())
    constants = reference("adam").constants(
        lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, t=1
    )
    # Each tensor begins two banks after the one before it.
    size = -(-4 * count // (4 * STAGGER_BYTES)) * 4 * STAGGER_BYTES + STAGGER_BYTES
    for tb in channels.values():
        await tb.set_mode(0, ACCELERATION)
        await tb.write_register(0, "count", count)
        for index, name in enumerate("pgmv"):
            await tb.write_register(0, f"{name}_in", index * size)
            if name != "g":
                await tb.write_register(0, f"{name}_out", index * size)
        for name, value in constants.items():
            await tb.write_register(0, name, int(np.float32(value).view(np.uint32)))
        await tb.write_register(0, "control", 1)
    figures = {}
    for side, tb in channels.items():
        status = tb.kernel["status"]
        while (value := await tb.read_register(0, "status")) & status["busy"].mask:
            await cocotb.triggers.ClockCycles(dut.clk, 1000)
        assert status["cause"].extract(value) == 0
        names = (
            "cycles",
            "beats_read",
            "beats_written",
            *(f"arbiter.{each}_tck" for each in TIMES),
        )
        figures[side] = {
            name.removeprefix("arbiter."): await tb.read_register(0, name) for name in names
        }
        assert figures[side]["beats_read"] == 4 * -(-4 * count // LINE)
    Path(parameters["report"]).write_text(json.dumps(figures))
