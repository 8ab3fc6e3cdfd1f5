"""cocotb tests of the merge of two AXI4 managers."""

from __future__ import annotations

import logging
import random
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import AxiBus, AxiMaster

from hw_tests.axi_memory import CHANNEL_STALLS, HABITS, memory_maker
from hw_tests.bench import bench_parameters
from hw_tests.stalls import STALLS, pause_channels
from hw_tests.streams import value_of

STALL = bench_parameters()["stalls"]
HALF = 1 << 15
LINE = 64
PIECE = 15 * LINE


class TB:
    """Two managers, each with half of the memory, and a watch on who comes first."""

    def __init__(self, dut: Any, memory: str) -> None:
        self.dut = dut
        self.rng = random.Random(cocotb.RANDOM_SEED)
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
        self.contents = np.zeros(2 * HALF, np.uint8)
        dut.rst.value = 1
        memory_maker(memory)(
            dut, "subordinate", dut.clk, self.contents, stalls=CHANNEL_STALLS[STALL], reset=dut.rst
        )
        self.managers = []
        for index in range(2):
            prefix = f"managers_{index}"
            logging.getLogger(f"cocotb.first_come.{prefix}").setLevel(logging.WARNING)
            manager = AxiMaster(AxiBus.from_prefix(dut, prefix), dut.clk, dut.rst, max_burst_len=2)
            pause_channels(manager, STALLS[STALL], self.rng.random())
            self.managers.append(manager)
        self.overtaken: list[tuple[str, int]] = []
        self.contested = 0

    async def start(self) -> None:
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        for channel in ("ar", "aw"):
            cocotb.start_soon(self.watch(channel))

    async def watch(self, channel: str) -> None:
        """Notes each address that passes while an earlier one of the other manager waits."""
        valid = [getattr(self.dut, f"managers_{index}_{channel}valid") for index in range(2)]
        ready = [getattr(self.dut, f"managers_{index}_{channel}ready") for index in range(2)]
        since: list[int | None] = [None, None]
        cycle = 0
        while True:
            await RisingEdge(self.dut.clk)
            cycle += 1
            for index in range(2):
                if value_of(valid[index]) and since[index] is None:
                    since[index] = cycle
            passed = [bool(value_of(valid[i]) and value_of(ready[i])) for i in range(2)]
            assert not all(passed)
            for index in range(2):
                mine, other = since[index], since[1 - index]
                if not passed[index]:
                    continue
                if mine is not None and other is not None:
                    self.contested += 1
                    if other < mine:
                        self.overtaken.append((channel, index))
                since[index] = None


@cocotb.test(timeout_time=300, timeout_unit="us")
@cocotb.parametrize(memory=[*HABITS, "foreign"])
async def data_of_both_and_nobody_overtakes(dut: Any, memory: str) -> None:
    tb = TB(dut, memory)
    await tb.start()

    async def use(index: int) -> None:
        rng = random.Random(tb.rng.random())
        expected = bytearray(HALF)
        base = index * HALF
        for _ in range(4):
            jobs = []
            # At once: several bursts each way, in places that do not meet.
            for part in range(4):
                length = LINE * rng.randint(1, 40)
                offset = part * 8192 + LINE * rng.randint(0, (8192 - length) // LINE)
                data = rng.randbytes(length)
                expected[offset : offset + length] = data
                jobs.append(
                    cocotb.start_soon(tb.managers[index].write(base + offset, data, awid=0))
                )
            for job in jobs:
                await job
            offset = LINE * rng.randint(0, (HALF - 4 * PIECE) // LINE)
            places = range(offset, offset + 4 * PIECE, PIECE)
            reads = [
                cocotb.start_soon(tb.managers[index].read(base + at, PIECE, arid=0))
                for at in places
            ]
            for at, job in zip(places, reads, strict=True):
                assert (await job).data == expected[at : at + PIECE]
        assert tb.contents[base : base + HALF].tobytes() == bytes(expected)

    users = [cocotb.start_soon(use(index)) for index in range(2)]
    for user in users:
        await user
    assert tb.overtaken == []
    assert tb.contested > 6
