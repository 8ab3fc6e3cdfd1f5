"""cocotb tests of the pool with cores, which run the program of ``program.c``.

Parameters: ``cores``, ``core_clock_ratio``.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np
from cocotb.task import bridge
from cocotb.triggers import ClockCycles
from numpy.typing import NDArray

from golden.pim import Opcode
from hw.csr.register_map import load_registers
from hw.pim.core.layouts import CoreCause
from hw.pim.registers.pool_registers import CORE_BYTES, CORES_OFFSET_BYTES, PIM_RDL
from hw_tests.bench import bench_parameters
from hw_tests.pim.bank.bank_works import dense_work
from hw_tests.pim.core.core_bench import start_clocks
from hw_tests.pim.core.program import (
    COMMANDS,
    OWN,
    POOL,
    PROGRAM,
    RESULTS,
    SCRATCHPAD,
    Command,
    Op,
    commands,
    window,
)
from hw_tests.pim.core.training_step import config_of
from hw_tests.pim.plans import planned
from hw_tests.pim.pool_bench import BenchTransport
from sw_driver.device.registers import RegisterWindow
from sw_driver.pim.registers import PoolRegisters
from sw_driver.pim.ring import Ring, ring_place

CORES = bench_parameters()["cores"]
CONFIG = config_of(CORES, bench_parameters()["core_clock_ratio"])
IMAGE_BYTES = 0x4800
"""From one core's window 0 to the next, in the local memory."""
DATA_BYTES = 0x1000
"""From what window 1 of one core shows to the next, in the striped memory."""
OPERANDS, RING = 0, 0x800
VALUES = 40
BASE, SIZE, HEAD, COMPLETIONS = 0x00, 0x08, 0x10, 0x20


class Host:
    """What the host does with cores."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.transport = BenchTransport(dut, CONFIG, 0.0)
        self.pool = PoolRegisters(self.transport)
        access = self.transport.read_register, self.transport.write_register
        registers = load_registers("pim_core", PIM_RDL)
        self.cores = [
            RegisterWindow(registers, *access, CORES_OFFSET_BYTES + CORE_BYTES * core)
            for core in range(CORES)
        ]
        self.heads = [0] * CORES

    def write(self, address: int, data: bytes) -> None:
        padded = data + bytes(-len(data) % 32)
        self.transport.write_memory(address, np.frombuffer(padded, np.uint8))

    def start(self, core: int) -> None:
        self.write(IMAGE_BYTES * core, PROGRAM)
        for name, value in (
            ("window_base", IMAGE_BYTES * core // 32),
            ("window_size", IMAGE_BYTES // 32),
            ("head", 0),
            ("control", 1),
        ):
            self.cores[core].write(name, value)
        self.heads[core] = 0

    def tell(self, core: int, *several: Command) -> None:
        self.write(IMAGE_BYTES * core + COMMANDS, commands(*several))
        self.heads[core] += 1
        self.cores[core].write("head", self.heads[core])

    def results(self, core: int, count: int) -> list[int]:
        """What the commands gave, when they are done."""
        for _ in range(1000):
            if self.cores[core].read_field("tail", "count") == self.heads[core]:
                break
            assert not self.cores[core].read_field("status", "cause")
            self.transport.advance(100)
        else:
            raise AssertionError(f"core {core} goes on and on")
        nbytes = -(-4 * count // 32) * 32
        found = self.transport.read_memory(IMAGE_BYTES * core + RESULTS, nbytes)
        return found.view(np.uint32)[:count].tolist()


def operands(core: int) -> NDArray[np.float32]:
    return np.random.default_rng(core).standard_normal((2, VALUES)).astype(np.float32)


def work_of_its_own(core: int, done: int = 0) -> tuple[list[Command], slice]:
    """Writes operands and a descriptor of 0.75 * a + b, offers it after ``done`` others, waits, and
    loads the result; which of what that gives is the result."""
    data = CONFIG.striped_start_bytes + DATA_BYTES * core
    work = dense_work(Opcode.SCALEADD, data, rows=1, columns=VALUES)
    work = replace(work, alpha_bits=0x3F400000)
    slot = RING + 256 * (done % 2)
    stored = {OPERANDS: operands(core).tobytes(), slot: planned(work, CONFIG).encode()}
    several: list[Command] = [
        (Op.STORE, OWN + 4 * 18, data // 32),
        (Op.STORE, OWN + 4 * 19, DATA_BYTES // 32),
    ]
    for place, content in stored.items():
        for number, (value,) in enumerate(struct.iter_unpack("<I", content)):
            several.append((Op.STORE, window(1, place + 4 * number), value))
    # What was there before the work is in the cache.
    result = 2 * 4 * VALUES
    several += [(Op.LOAD, window(1, result + 4 * number), 0) for number in range(0, VALUES, 8)]
    own_ring = POOL + 0x800 + 64 * (core + 1)
    several += [
        (Op.STORE, own_ring + BASE, (data + RING) // 256),
        (Op.STORE, own_ring + SIZE, 1),
        (Op.STORE, own_ring + HEAD, done + 1),
        (Op.WAIT, own_ring + COMPLETIONS, 1 << 16 | (done + 1)),
        (Op.INVALIDATE, 0, 0),
    ]
    first = len(several)
    several += [(Op.LOAD, window(1, result + 4 * number), 0) for number in range(VALUES)]
    return several, slice(first, first + VALUES)


def check_work(host: Host, core: int, told: tuple[list[Command], slice]) -> None:
    several, result = told
    a, b = operands(core)
    found = np.array(host.results(core, len(several))[result], np.uint32)
    assert np.array_equal(found, (np.float32(0.75) * a + b).view(np.uint32)), core


def works(host: Host) -> None:
    told = [work_of_its_own(core) for core in range(CORES)]
    for core, (several, _) in enumerate(told):
        host.start(core)
        host.tell(core, *several)
    for core, each in enumerate(told):
        check_work(host, core, each)
        # The completion is in memory, too.
        slot = CONFIG.striped_start_bytes + DATA_BYTES * core + RING + 192
        assert host.transport.read_memory(slot, 32).view(np.uint32)[0] == 1
    host.transport.advance(200)
    assert host.pool.pool.read_field("idle") == (1 << CONFIG.banks + CORES) - 1


def a_read_that_waits(host: Host) -> None:
    """The host reads the result of a work that takes longer than all that a core does."""
    work = dense_work(Opcode.MATMUL, IMAGE_BYTES, rows=32, columns=32, length=96)
    ring = Ring(host.transport, 0, ring_place(CONFIG))
    host.start(0)
    told = work_of_its_own(0)
    host.tell(0, *told[0])
    ring.write(np.frombuffer(planned(work, CONFIG).encode(), "<u4").tolist())
    host.transport.advance(300)
    assert host.pool.slots[0].read_field("state") == 2
    tail = host.cores[0].read_field("tail", "count")
    started = host.transport.cycles()
    host.transport.read_memory(work.span("result").start, 32)
    assert host.transport.cycles() > started + 20_000
    assert (tail, host.cores[0].read_field("tail", "count")) == (0, 1)
    check_work(host, 0, told)


def one_that_is_stopped(host: Host) -> None:
    """For each cause of the pool's: the others and the host's works go on, and so does the core
    when it is started again."""
    own_ring = POOL + 0x800 + 64
    host.cores[0].write("interrupt", 1)
    host.cores[0].write("limit", 20_000 * CONFIG.core_clock_ratio)
    ring = Ring(host.transport, 0, ring_place(CONFIG))
    work = dense_work(Opcode.MUL, IMAGE_BYTES * CORES, rows=2, columns=40)
    for turn, (cause, bad) in enumerate(
        {
            CoreCause.LIMIT: [(Op.ENDLESS, SCRATCHPAD, 0)],
            CoreCause.RING: [
                (Op.STORE, own_ring + BASE, (CONFIG.striped_start_bytes + RING) // 256),
                (Op.STORE, own_ring + SIZE, 1),
                (Op.STORE, own_ring + HEAD, 3),
            ],
            CoreCause.REGISTER: [(Op.STORE, own_ring - 64 + HEAD, 1)],
        }.items()
    ):
        for core in range(CORES):
            host.start(core)
        host.tell(0, *bad)
        other = CORES - 1
        told = work_of_its_own(other, turn if CORES > 1 else 0)
        if other:
            host.tell(other, *told[0])
        ring.write(np.frombuffer(planned(work, CONFIG).encode(), "<u4").tolist())
        for _ in range(300):
            host.transport.advance(100)
            if host.cores[0].read_field("status", "cause"):
                break
        assert host.cores[0].read_field("status", "cause") == cause.value
        assert not host.cores[0].read_field("status", "running")
        assert host.dut.irq.value.to_unsigned() >> CONFIG.rings & 1
        if other:
            check_work(host, other, told)
        assert [each.cause for each in ring.completions()] == [0]
        idle = host.pool.pool.read_field("idle")
        assert idle >> CONFIG.banks & 1 == 0
        host.cores[0].write("control", 0)
        host.cores[0].write("tail", 1 << 16)
        assert not host.dut.irq.value.to_unsigned() >> CONFIG.rings & 1
        # A core may begin again when its ring has come to rest.
        host.transport.advance(1000)
    # Of three descriptors in a ring of two slots at most the one that was being fetched was taken,
    # and was refused, of which there is a completion; the others are forgotten.
    done = host.pool.rings[1].read_field("completions", "count")
    assert done == host.pool.rings[1].read_field("tail", "count") <= 1
    host.start(0)
    told = work_of_its_own(0, done)
    host.tell(0, *told[0])
    check_work(host, 0, told)


@cocotb.test(timeout_time=10, timeout_unit="ms")
@cocotb.parametrize(what=["works", "a_read_that_waits", "one_that_is_stopped"])
async def cores(dut: Any, what: str) -> None:
    dut.rst.value = 1
    start_clocks(dut, CONFIG.core_clock_ratio)
    host = Host(dut)
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0
    await bridge(globals()[what])(host)
    assert not dut.violation.value
