"""cocotb tests of the module with a host on AXI4: registers as a processor reaches them."""

from __future__ import annotations

import logging
import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, gather
from cocotbext.axi import AxiBus, AxiMaster, AxiResp

from hw.axdimm.registers import arbiter_map
from hw.kernel.registers import kernel_map
from hw_tests.axdimm.module_bench import ACCELERATION, NORMAL, Job, RegisterHost
from hw_tests.bench import bench_parameters
from hw_tests.stalls import STALLS, pause_channels


class TB(RegisterHost):
    """Software on the host: registers in words of ``word`` bytes, memory in bursts."""

    def __init__(self, dut: Any, word: int) -> None:
        self.dut = dut
        self.parameters = bench_parameters()
        self.capacity = self.parameters["capacity_bytes"]
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.arbiter = arbiter_map()
        self.kernel = kernel_map()
        self.word = word
        self.hosts = []
        for channel in range(self.parameters["channels"]):
            prefix = f"s_axi{channel}"
            logging.getLogger(f"cocotb.{dut._name}.{prefix}").setLevel(logging.WARNING)
            host = AxiMaster(AxiBus.from_prefix(dut, prefix), dut.clk, dut.rst)
            pause_channels(host, STALLS[self.parameters["stalls"]], prefix)
            self.hosts.append(host)

    async def start(self) -> None:
        Clock(self.dut.clk, 5, unit="ns").start()
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0

    async def write_register(self, channel: int, name: str, value: int) -> None:
        data = value.to_bytes(8, "little")
        address = self.register_address(channel, name) % self.capacity
        for place in range(0, 8, self.word):
            part = data[place : place + self.word]
            size = self.word.bit_length() - 1
            answer = await self.hosts[channel].write(address + place, part, size=size)
            assert answer.resp == AxiResp.OKAY

    async def read_register(self, channel: int, name: str) -> int:
        address = self.register_address(channel, name) % self.capacity
        data = b""
        for place in range(0, 8, self.word):
            size = self.word.bit_length() - 1
            answer = await self.hosts[channel].read(address + place, self.word, size=size)
            assert answer.resp == AxiResp.OKAY
            data += answer.data
        return int.from_bytes(data, "little")

    async def write(self, channel: int, address: int, data: bytes) -> None:
        assert (await self.hosts[channel].write(address, data)).resp == AxiResp.OKAY

    async def read(self, channel: int, address: int, size: int) -> bytes:
        answer = await self.hosts[channel].read(address, size)
        assert answer.resp == AxiResp.OKAY
        return answer.data


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(word=[8, 4])
async def both_channels_work_at_once(dut: Any, word: int) -> None:
    tb = TB(dut, word)
    await tb.start()
    jobs = [Job(tb.rng, count, t) for count, t in ((513, 1), (tb.rng.randrange(1, 700), 1000))]

    async def step(channel: int) -> None:
        job = jobs[channel]
        await job.store(tb, channel)
        await job.begin(tb, channel)
        # The kernel has the memory, and the host is told so.
        answer = await tb.hosts[channel].read(job.base["p"], 64)
        assert answer.resp == AxiResp.SLVERR
        assert await tb.read_register(channel, "arbiter.status") == ACCELERATION | 0b100
        await job.end(tb, channel)
        await job.check(tb, channel)
        assert await tb.read_register(channel, "arbiter.status") == NORMAL
        assert await tb.read_register(channel, "arbiter.refused") == 1

    await gather(*(step(channel) for channel in (0, 1)))
    assert dut.violations.value == 0


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def copies_keep_the_memory_busy(dut: Any) -> None:
    """Long copies, one way at a time and both at once, on a DRAM that refreshes and turns."""
    tb = TB(dut, 8)
    await tb.start()
    # Short ones are enough where nothing is said of their cycles.
    size = (64 if tb.parameters["stalls"] == "none" else 16) * 1024
    data = tb.rng.randbytes(size)

    async def cycles(*copies: Any) -> int:
        begin = cocotb.utils.get_sim_time("ns")
        await gather(*copies)
        return round((cocotb.utils.get_sim_time("ns") - begin) / 5)

    lines = size // 64
    write = await cycles(tb.write(0, 0, data))
    read = await cycles(tb.read(0, 0, size))
    both = await cycles(tb.read(0, 0, size), tb.write(0, size, data))
    dut._log.info("cycles of %d lines: write %d, read %d, both %d", lines, write, read, both)
    assert await tb.read(0, 0, 2 * size) == 2 * data
    assert dut.violations.value == 0
    if tb.parameters["stalls"] == "none":
        assert max(write, read) < 1.25 * lines
        assert both < 1.75 * 2 * lines
