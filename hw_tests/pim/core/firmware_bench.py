"""cocotb test of cores with their firmware, of which each does steps of training.

Parameter: ``cores``.
"""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.task import bridge
from cocotb.triggers import ClockCycles

from hw.csr.register_map import load_registers
from hw.pim.registers.pool_registers import CORE_BYTES, CORES_OFFSET_BYTES, PIM_RDL
from hw_tests.bench import bench_parameters
from hw_tests.pim.core.training_step import STEPS, Steps, config_of
from hw_tests.pim.pool_bench import BenchTransport
from sw_driver.device.registers import RegisterWindow
from sw_driver.pim.placing import StackMemory
from sw_driver.pim.programs import COUNTS_BYTES, FIRMWARE_BYTES, QUEUE_BYTES, WINDOW_BYTES, Firmware

CORES = bench_parameters()["cores"]
CONFIG = config_of(CORES)
TURNS = 2
PLACE_BYTES = 0xB000
"""From one core's window 0 to the next, in the local memory."""


def run(dut: Any) -> None:
    transport = BenchTransport(dut, CONFIG, 0.0)
    firmware = Firmware.of()
    memory = StackMemory(CONFIG)
    barrier = memory.place("barrier", (CORES, 8)).address_bytes
    steps = [Steps(number, CONFIG, memory) for number in range(CORES)]
    stack = np.zeros(CONFIG.stack_bytes, np.uint8)
    striped = CONFIG.striped_start_bytes
    access = transport.read_register, transport.write_register
    cores = []
    for number, step in enumerate(steps):
        offset = WINDOW_BYTES + barrier - striped
        command = step.fill(stack, offset, CORES, steps[(number + 1) % CORES])
        image = np.frombuffer(firmware.image + bytes(-len(firmware.image) % 32), np.uint8)
        slot = np.array(firmware.slot(command, [step.window]), "<u4").view(np.uint8)
        place = PLACE_BYTES * number
        transport.write_memory(place, image)
        for turn in range(TURNS):
            transport.write_memory(place + QUEUE_BYTES + 256 * turn, slot)
        registers = load_registers("pim_core", PIM_RDL)
        cores.append(RegisterWindow(registers, *access, CORES_OFFSET_BYTES + CORE_BYTES * number))
        cores[-1].write("window_base", place // 32)
        cores[-1].write("window_size", FIRMWARE_BYTES // 32)
    used = slice(striped, memory.place("end", (8,)).address_bytes)
    for turn in range(TURNS):
        for step in steps:
            step.label(stack, turn)
        transport.write_memory(striped, stack[used])
        # The last one, which has most to do, begins last.
        for core in cores:
            core.write("head", turn + 1)
            core.write("control", 1)
            transport.advance(2000)
        for core in cores:
            while core.read_field("tail", "count") == turn:
                cause, address = core.read_fields("status", "cause", "address")
                assert not cause, hex(address)
                transport.advance(500)
        dut._log.info("%d cycles", transport.cycles())
        stack[barrier : barrier + 32 * CORES].view("<u4")[::8] += STEPS
        for step in steps:
            step.expect(stack)
        for step, other in zip(steps, [*steps[1:], steps[0]], strict=True):
            step.view(stack, "others")[0, : other.samples] = other.view(stack, "losses")[0]
        found = transport.read_memory(striped, used.stop - used.start)
        assert np.array_equal(found, stack[used]), turn

    for number, step in enumerate(steps):
        place = PLACE_BYTES * number
        for turn in range(TURNS):
            ended = transport.read_memory(place + QUEUE_BYTES + 256 * turn + 224, 32).view("<u4")
            assert ended[6:].tolist() == [turn + 1, 0]
        counts = transport.read_memory(place + COUNTS_BYTES, 32).view("<u8").tolist()
        multiplications, additions = zip(*(work.operations for work in step.works), strict=True)
        assert counts == [STEPS * sum(multiplications), 0, STEPS * sum(additions), 0]


@cocotb.test(timeout_time=40, timeout_unit="ms")
async def steps_of_training(dut: Any) -> None:
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0
    await bridge(run)(dut)
    assert not dut.violation.value
