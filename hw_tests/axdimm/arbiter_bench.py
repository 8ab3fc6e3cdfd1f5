"""cocotb tests of the arbiter."""

from __future__ import annotations

import logging
import random
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteRam, AxiMaster

from hw.axdimm.memory import MOST_ADMITTED, MOST_UNANSWERED
from hw.axdimm.registers import arbiter_map
from hw_tests.axi_memory import CHANNEL_STALLS, HABITS, AxiMemory, memory_maker
from hw_tests.bench import bench_parameters
from hw_tests.host_link import HostLink
from hw_tests.stalls import STALLS, pause_channels

LINE = 64
MEASURED = {
    name: 1000 + 11 * index
    for index, name in enumerate(
        (
            "memory_refreshes",
            "memory_activates",
            "memory_precharges",
            "memory_longest_refresh_gap",
            "run_data_tck",
            "run_refresh_tck",
            "run_starved_tck",
            "run_row_tck",
            "run_turn_around_tck",
            "run_idle_tck",
            "run_run_activates",
            "run_run_precharges",
            "run_run_refreshes",
            "run_run_turns",
        )
    )
}
"""What the memory and the run are said to have counted, by the port that says so."""


class TB:
    """A host on the link, a kernel on the kernel port, and memories behind the arbiter.

    ``memory`` is what :func:`memory_maker` takes.
    """

    def __init__(self, dut: Any, memory: str = "foreign", *, kernel_burst_lines: int = 64) -> None:
        for name in ("kernel", "kernel_csr"):
            logging.getLogger(f"cocotb.arbiter.{name}").setLevel(logging.WARNING)
        self.dut = dut
        parameters = bench_parameters()
        self.latency = parameters["read_latency"]
        self.capacity = 1 << parameters["address_width"]
        self.stalls = parameters["stalls"]
        self.rng = random.Random(cocotb.RANDOM_SEED)
        dut.memory_idle.value = 1
        dut.kernel_busy.value = 0
        for name, value in MEASURED.items():
            getattr(dut, name).value = value
        self.contents = np.zeros(self.capacity, np.uint8)
        make = memory_maker(memory)
        self.memory = make(dut, "memory_axi", dut.clk, self.contents, reset=dut.rst)
        self.kernel = AxiMaster(
            AxiBus.from_prefix(dut, "kernel"),
            dut.clk,
            dut.rst,
            max_burst_len=kernel_burst_lines,
        )
        self.kernel_registers = AxiLiteRam(
            AxiLiteBus.from_prefix(dut, "kernel_csr"), dut.clk, dut.rst, size=4096
        )
        self.host = HostLink(dut)
        self.registers = arbiter_map()

    async def start(self) -> None:
        Clock(self.dut.clk, 5, unit="ns").start()
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 4)
        self.dut.rst.value = 0
        await ClockCycles(self.dut.clk, 260)
        cocotb.start_soon(self.host.monitor())

    def stall(self) -> None:
        """Pauses every channel of the kernel, of its registers and of the memory at random."""
        interfaces = [self.kernel, self.kernel_registers]
        if isinstance(self.memory, AxiMemory):
            self.memory.stalls = CHANNEL_STALLS[self.stalls]
        else:
            interfaces.append(self.memory)
        for interface in interfaces:
            pause_channels(interface, STALLS[self.stalls], self.rng.random())

    def read(self, address: int, length: int) -> bytes:
        """What is in the memory."""
        return self.contents[address : address + length].tobytes()

    def write(self, address: int, data: bytes) -> None:
        """Into the memory."""
        self.contents[address : address + len(data)] = np.frombuffer(data, np.uint8)

    def register_line(self, name: str) -> int:
        return (self.capacity - 4096 + self.registers[name].offset_bytes) // LINE

    def kernel_line(self, offset: int) -> int:
        return (self.capacity - 8192 + offset) // LINE

    async def register(self, name: str) -> int:
        return await self.host.read(self.register_line(name), attempts=200)

    async def set_mode(self, mode: int) -> None:
        await self.host.request(self.register_line("mode"), mode)
        while True:
            status = await self.register("status")
            if status & 3 == mode:
                return

    async def settle(self) -> None:
        """Long enough for a full queue to reach the memory."""
        await ClockCycles(self.dut.clk, 3000)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def host_traffic_has_a_fixed_latency(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    tb.stall()
    # Slow enough for the memory: the link has no backpressure.
    gap = {"none": 6, "random": 12, "heavy": 90}[tb.stalls]
    expected: dict[int, int] = {}
    lines = [tb.rng.randrange((tb.capacity - 8192) // LINE) for _ in range(24)]
    reads: list[tuple[int, int]] = []
    writes = 0
    for _ in range(100):
        line = tb.rng.choice(lines)
        if tb.rng.random() < 0.5:
            data = tb.rng.getrandbits(512)
            await tb.host.request(line, data, gap=gap)
            expected[line] = data
            writes += 1
        else:
            reads.append((line, expected.get(line, 0)))
            await tb.host.request(line, gap=gap)
    await tb.settle()
    late = 0
    assert len(tb.host.answers) == len(reads)
    for (line, data), answer in zip(reads, tb.host.answers, strict=True):
        assert answer.answered - answer.asked == tb.latency, (answer.asked, answer.answered)
        late += answer.late
        assert answer.late or answer.data == data, hex(line)
    for line, data in expected.items():
        assert int.from_bytes(tb.read(line * LINE, LINE), "little") == data
    if tb.stalls == "none":
        assert late == 0
    seen = len(tb.host.answers)
    for name, value in {
        "late_reads": late,
        "host_reads": len(reads),
        "host_writes": writes,
        "refused": 0,
        "overflows": 0,
    }.items():
        count = await tb.register(name)
        # Register reads behind a stalled memory read may themselves be late.
        more = sum(answer.late for answer in tb.host.answers[seen:])
        assert value <= count <= value + (more if name == "late_reads" else 0), (name, count)
    dut._log.info("late reads: %d of %d", late, len(reads))


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def order_is_kept(dut: Any) -> None:
    """Neither direction overtakes the other, though AXI would let it."""
    tb = TB(dut)
    await tb.start()
    read, write = tb.memory.read_if, tb.memory.write_if
    for held, first, second in (
        (read.ar_channel, None, 0x2222),
        (write.aw_channel, 0x3333, None),
        (write.w_channel, 0x4444, None),
    ):
        await tb.host.request(9, 0x1111)
        await ClockCycles(dut.clk, 100)
        held.pause = True
        await tb.host.request(9, first)
        await tb.host.request(9, second)
        await ClockCycles(dut.clk, 10)
        held.pause = False
        await ClockCycles(dut.clk, 100)
        answer = tb.host.answers[-1]
        assert not answer.late
        assert answer.data == (0x1111 if first is None else first)
        assert int.from_bytes(tb.read(9 * LINE, LINE), "little") == (first or second)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def modes_are_exclusive(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    tb.stall()
    data = tb.rng.randbytes(3 * 4096)
    pending = cocotb.start_soon(tb.kernel.write(0x4000, data, awid=0))
    await ClockCycles(dut.clk, 600)
    assert not pending.done()
    assert tb.read(0x4000, len(data)) == bytes(len(data)), "kernel wrote in normal mode"

    dut.kernel_busy.value = 1
    await tb.set_mode(1)
    assert await tb.register("status") == 0b101
    dut.kernel_busy.value = 0
    await pending
    assert tb.read(0x4000, len(data)) == data

    refused = await tb.register("refused")
    assert refused == 0
    # The kernel's registers take what the host writes to their window.
    await tb.host.request(tb.kernel_line(0x80), 0x1122334455667788)
    assert await tb.host.read(tb.kernel_line(0x80), attempts=400) == 0x1122334455667788
    # Requests to DRAM are nobody's, and touch nothing.
    await tb.host.request(0x4000 // LINE, 0)
    await tb.host.request(0x4000 // LINE)
    await ClockCycles(dut.clk, tb.latency + 2)
    assert tb.host.answers[-1].late
    assert await tb.register("refused") == 2
    assert tb.read(0x4000, len(data)) == data

    await tb.set_mode(0)
    await tb.host.request(tb.kernel_line(0x80), 5)
    await tb.host.request((tb.capacity - LINE) // LINE, 5)
    await ClockCycles(dut.clk, 20)
    assert await tb.register("refused") == 4
    assert int.from_bytes(tb.kernel_registers.read(0x80, 8), "little") == 0x1122334455667788


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(memory=["foreign", *HABITS])
async def a_switch_drains_what_is_in_flight(dut: Any, memory: str) -> None:
    tb = TB(dut, memory)
    # Reads are so short that one is on offer at most of the switches.
    tb.kernel.read_if.max_burst_len = 4
    await tb.start()
    tb.stall()
    await tb.set_mode(1)
    source = tb.rng.randbytes(8 * 4096)
    tb.write(0x10000, source)
    data = tb.rng.randbytes(8 * 4096)
    write = cocotb.start_soon(tb.kernel.write(0x20000, data, awid=0))
    read = cocotb.start_soon(tb.kernel.read(0x10000, len(source), arid=0))
    host_data = {}
    for turn in range(4):
        await ClockCycles(dut.clk, tb.rng.randrange(5, 120))
        await tb.set_mode(0)
        assert dut.memory_axi_rvalid.value == 0
        for step in range(3):
            line = (0x30000 >> 6) + 8 * turn + step
            host_data[line] = tb.rng.getrandbits(512)
            await tb.host.request(line, host_data[line])
        if memory != "late":  # It has no data by the time that the host's reads end.
            assert await tb.host.read(line, attempts=400) == host_data[line]
        before = (tb.read(0x20000, len(data)), tb.dut.memory_axi_awvalid.value)
        await ClockCycles(dut.clk, 100)
        assert (tb.read(0x20000, len(data)), 0) == (before[0], 0)
        await tb.set_mode(1)
    await write
    assert (await read).data == source
    assert tb.read(0x20000, len(data)) == data
    for line, value in host_data.items():
        assert int.from_bytes(tb.read(line * LINE, LINE), "little") == value


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize((("write", "most"), [(False, MOST_ADMITTED), (True, MOST_UNANSWERED)]))
async def a_switch_waits_for_all_that_a_deep_memory_took(dut: Any, write: bool, most: int) -> None:
    """The arbiter begins no more bursts than it can count, however many the memory would take."""
    tb = TB(dut, HABITS[0], kernel_burst_lines=1)
    await tb.start()
    await tb.set_mode(1)
    channel = "b" if write else "r"
    tb.memory.stalls = {channel: 1.0}
    data = tb.rng.randbytes(LINE * (most + 1))
    if write:
        job = cocotb.start_soon(tb.kernel.write(0x10000, data, awid=0))
    else:
        tb.write(0x10000, data)
        job = cocotb.start_soon(tb.kernel.read(0x10000, len(data), arid=0))
    bursts = tb.memory.writes if write else tb.memory.reads
    await ClockCycles(dut.clk, 4 * most)
    await tb.host.request(tb.register_line("mode"), 0)
    await ClockCycles(dut.clk, 100)
    assert await tb.register("status") == 0b011, "switched with bursts under way"
    assert most - 1 <= len(bursts) <= most
    tb.memory.stalls = {}
    while await tb.register("status") != 0:
        pass
    assert len(bursts) <= most
    await tb.set_mode(1)
    result = await job
    assert tb.read(0x10000, len(data)) == (data if write else result.data) == data


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def the_switch_waits_for_the_memory(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    dut.memory_idle.value = 0
    await tb.host.request(tb.register_line("mode"), 1)
    await ClockCycles(dut.clk, 200)
    assert await tb.register("status") == 0b010, "switched while the memory was busy"
    # Meanwhile DRAM is nobody's.
    await tb.host.request(0, 123)
    await ClockCycles(dut.clk, 20)
    assert await tb.register("refused") == 1
    dut.memory_idle.value = 1
    await ClockCycles(dut.clk, 10)
    assert await tb.register("status") == 0b001
    assert tb.read(0, 8) == bytes(8)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def two_refusals_of_a_cycle_both_count(dut: Any) -> None:
    """By the kernel's registers and by the arbiter, at each distance of the requests."""
    tb = TB(dut)
    await tb.start()
    await tb.set_mode(1)

    async def fail(*_: Any) -> None:
        raise OSError

    tb.kernel_registers.write_if._write = fail
    for gap in range(1, 16):
        await tb.host.request(tb.kernel_line(0x80), 1, gap=gap)
        await tb.host.request(0, 1)
        await ClockCycles(dut.clk, 40)
        assert await tb.register("refused") == 2 * gap


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def too_many_requests_are_counted_as_lost(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    tb.memory.write_if.aw_channel.pause = True
    for step in range(200):
        await tb.host.request(step, step + 1, force=True)
    tb.memory.write_if.aw_channel.pause = False
    await ClockCycles(dut.clk, 2000)
    overflows = await tb.register("overflows")
    kept = [step for step in range(200) if int.from_bytes(tb.read(64 * step, 64), "little")]
    assert overflows == 200 - len(kept) > 0
    assert kept == list(range(len(kept)))


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def constants_and_inputs_are_readable(dut: Any) -> None:
    tb = TB(dut)
    await tb.start()
    parameters = bench_parameters()
    assert await tb.register("id") == int.from_bytes(b"AXDN", "little") | 2 << 32
    assert await tb.register("capacity") == tb.capacity
    assert await tb.register("config") == (
        parameters["lanes"]
        | parameters["block_bytes"] << 8
        | parameters["read_latency"] << 40
        | len(parameters["rules"]) << 56
    )
    for number in range(16):
        rules = [*parameters["rules"], *[0] * 16]
        assert await tb.register(f"rule_{number}") == rules[number]
    for port, value in MEASURED.items():
        register = port.split("_", 1)[1]
        if register == "longest_refresh_gap":
            # In fabric cycles, of four DRAM clocks each.
            assert await tb.register("longest_refresh_gap_tck") == 4 * value
        else:
            assert await tb.register(register) == value, port
    await RisingEdge(dut.clk)
