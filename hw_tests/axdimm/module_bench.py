"""cocotb tests of the module: everything over the host link, as software would do it."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles

from golden.rules import reference
from hw.axdimm.registers import arbiter_map
from hw.csr.register_map import RegisterMap
from hw.kernel.registers import kernel_map
from hw_tests.bench import bench_parameters
from hw_tests.host_link import HostLink
from hw_tests.stalls import STALLS

LINE = 64
NORMAL, ACCELERATION = 0, 1
ATTEMPTS = 50


class RegisterHost:
    """What every host does in the same way, by its means of reaching registers and memory."""

    capacity: int
    arbiter: RegisterMap
    kernel: RegisterMap

    def register_address(self, channel: int, name: str) -> int:
        """In the module, the channels one after the other."""
        if name.startswith("arbiter."):
            offset = self.capacity - 4096 + self.arbiter[name[8:]].offset_bytes
        else:
            offset = self.capacity - 8192 + self.kernel[name].offset_bytes
        return channel * self.capacity + offset

    async def write_register(self, channel: int, name: str, value: int) -> None:
        raise NotImplementedError

    async def read_register(self, channel: int, name: str) -> int:
        raise NotImplementedError

    async def set_mode(self, channel: int, mode: int) -> None:
        await self.write_register(channel, "arbiter.mode", mode)
        while await self.read_register(channel, "arbiter.status") & 3 != mode:
            pass


class TB(RegisterHost):
    """Software on the host, one task at a time."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.parameters = bench_parameters()
        self.capacity = self.parameters["capacity_bytes"]
        self.host = HostLink(dut, pause=STALLS[self.parameters["gaps"]], seed=cocotb.RANDOM_SEED)
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.arbiter = arbiter_map()
        self.kernel = kernel_map()

    async def start(self) -> None:
        Clock(self.dut.clk, 5, unit="ns").start()
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        await ClockCycles(self.dut.clk, 300)
        cocotb.start_soon(self.host.monitor())

    def line(self, channel: int, address: int) -> int:
        return (channel * self.capacity + address) // LINE

    async def write_register(self, channel: int, name: str, value: int) -> None:
        await self.host.request(self.register_address(channel, name) // LINE, value)

    async def read_register(self, channel: int, name: str) -> int:
        line = self.register_address(channel, name) // LINE
        return await self.host.read(line, attempts=ATTEMPTS) & (1 << 64) - 1

    async def write(self, channel: int, address: int, data: bytes) -> None:
        for place in range(0, len(data), LINE):
            chunk = data[place : place + LINE]
            await self.host.request(
                self.line(channel, address + place), int.from_bytes(chunk, "little")
            )

    async def read(self, channel: int, address: int, size: int) -> bytes:
        """Reads at the link's pace; what came late is read again, one by one."""
        first = len(self.host.answers)
        lines = [self.line(channel, address + place) for place in range(0, size, LINE)]
        for line in lines:
            await self.host.request(line)
        await ClockCycles(self.dut.clk, self.parameters["read_latency"] + 2)
        parts = []
        for line, answer in zip(lines, self.host.answers[first:], strict=True):
            assert answer.answered - answer.asked == self.parameters["read_latency"]
            data = answer.data
            if answer.late:
                data = await self.host.read(line, attempts=ATTEMPTS)
            parts.append(data.to_bytes(LINE, "little"))
        return b"".join(parts)


class Job:
    """Tensors of one channel, what they must become, and bytes that must not change."""

    def __init__(self, rng: random.Random, count: int, t: int) -> None:
        values = np.random.default_rng(rng.getrandbits(32))
        self.count = count
        self.size = -(-4 * count // LINE) * LINE
        self.before = {name: values.bytes(self.size + LINE) for name in "pgmv"}
        arrays = {
            name: values.standard_normal(count).astype(np.float32) * np.float32(0.1)
            for name in "pgmv"
        }
        arrays["v"] = np.abs(arrays["v"])
        for name, array in arrays.items():
            self.before[name] = array.tobytes() + self.before[name][4 * count :]
        adam = reference("adam")
        self.constants = adam.constants(
            lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, t=t
        )
        self.after = dict(self.before)
        for name, array in adam.step(arrays, self.constants).items():
            self.after[name] = array.tobytes() + self.before[name][4 * count :]
        # Apart by more than a tensor, at bases that are only aligned to lines.
        self.base = {}
        place = 0
        for name in "pgmv":
            place += LINE * rng.randrange(1, 9)
            self.base[name] = place
            place += self.size + LINE

    async def store(self, tb: Any, channel: int) -> None:
        for name in "pgmv":
            await tb.write(channel, self.base[name], self.before[name])

    async def begin(self, tb: Any, channel: int) -> None:
        await tb.set_mode(channel, ACCELERATION)
        await tb.write_register(channel, "count", self.count)
        for name in "pgmv":
            await tb.write_register(channel, f"{name}_in", self.base[name])
            if name != "g":
                await tb.write_register(channel, f"{name}_out", self.base[name])
        for name, value in self.constants.items():
            await tb.write_register(channel, name, int(np.float32(value).view(np.uint32)))
        await tb.write_register(channel, "control", 1)

    async def end(self, tb: Any, channel: int) -> None:
        status = tb.kernel["status"]
        while (value := await tb.read_register(channel, "status")) & status["busy"].mask:
            await ClockCycles(tb.dut.clk, 20)
        assert status["done"].extract(value) == 1
        assert status["cause"].extract(value) == 0
        beats = -(-self.count // 16)
        assert await tb.read_register(channel, "beats_read") == 4 * beats
        assert await tb.read_register(channel, "beats_written") == 3 * beats

    async def check(self, tb: Any, channel: int) -> None:
        await tb.set_mode(channel, NORMAL)
        for name in "pgmv":
            data = await tb.read(channel, self.base[name], len(self.after[name]))
            assert data == self.after[name], f"channel {channel}: {name} differs"


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def both_channels_work_at_once(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    jobs = [Job(tb.rng, count, t) for count, t in ((513, 1), (tb.rng.randrange(1, 700), 1000))]
    for channel, job in enumerate(jobs):
        await job.store(tb, channel)
    for channel, job in enumerate(jobs):
        await job.begin(tb, channel)
    for channel, job in enumerate(jobs):
        await job.end(tb, channel)
    for channel, job in enumerate(jobs):
        await job.check(tb, channel)
    assert dut.violations.value == 0


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def one_channel_is_copied_while_the_other_computes(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    job = Job(tb.rng, 700, 3)
    await job.store(tb, 1)
    await job.begin(tb, 1)
    data = tb.rng.randbytes(40 * LINE)
    await tb.write(0, 0x800, data)
    assert await tb.read(0, 0x800, len(data)) == data
    # The kernel was at work meanwhile, and its channel gives the host nothing but registers.
    assert await tb.read_register(1, "arbiter.status") == ACCELERATION | 0b100
    assert await tb.read_register(0, "arbiter.status") == NORMAL
    await job.end(tb, 1)
    await job.check(tb, 1)
    assert await tb.read_register(0, "arbiter.host_writes") == 40
    assert await tb.read_register(0, "arbiter.overflows") == 0
    assert dut.violations.value == 0


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def answers_of_two_channels_do_not_meet(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    data = [[tb.rng.randbytes(LINE) for _ in range(32)] for _ in range(2)]
    for place in range(32):
        for channel in (0, 1):
            await tb.write(channel, place * LINE, data[channel][place])
    first = len(tb.host.answers)
    order = [(tb.rng.randrange(2), tb.rng.randrange(32)) for _ in range(200)]
    for channel, place in order:
        await tb.host.request(tb.line(channel, place * LINE))
    await ClockCycles(dut.clk, tb.parameters["read_latency"] + 2)
    answers = tb.host.answers[first:]
    assert len(answers) == len(order)
    for (channel, place), answer in zip(order, answers, strict=True):
        assert answer.answered - answer.asked == tb.parameters["read_latency"]
        assert answer.late or answer.data == int.from_bytes(data[channel][place], "little")
    assert sum(answer.late for answer in answers) < len(answers) // 2
    assert dut.violations.value == 0
