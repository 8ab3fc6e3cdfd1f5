"""cocotb side of the test of the model of kernels' cycles: the firmware on a core alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from hw_tests.pim.core.core_bench import RATIO, TB
from sw_driver.pim.programs import (
    FIRMWARE_BYTES,
    QUEUE_BYTES,
    WINDOW_BYTES,
    Command,
    Firmware,
    Window,
)
from sw_driver.predict.pim.core import kernel_cycles

READ_CYCLES = 2
"""Of the bench's memory without pauses."""
DATA_BYTES = 0x10000
LABELS = 0x7000


def shapes() -> list[tuple[str, Sequence[int | float]]]:
    """None of those that the model was calibrated with, behind one that only fills the cache of
    instructions."""
    a, b, c, d = (WINDOW_BYTES + place for place in (0, 0x1000, 0x2420, 0x3840))
    return [
        ("relu", (a, b, 1)),
        ("relu", (a, b, 301)),
        ("adam", (a, b, c, d, 60, *[0.1] * 9)),
        ("adam", (a, c, d, d + 0x1020, 60, *[0.1] * 9)),
        ("copy", (a, b, 1, 7, 5, 11, 0, 55, 1, 5, 0, 55, 11, 1)),
        ("bias_gradient", (a, d, 5, 3, 17)),
        ("max_pool", (a, d, 2, 9, 8, 5, 4, 3, 3, 2, 1, 1)),
        ("softmax_cross_entropy", (a, WINDOW_BYTES + LABELS, d, c, 6, 10, 10, 1, 0.25)),
    ]


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def kernels_take_what_the_model_says(dut: Any) -> None:
    tb, firmware = TB(dut, pause=0), Firmware.of()
    base, tb.window_bytes = tb.base, FIRMWARE_BYTES
    tb.memory[base : base + len(firmware.image)] = firmware.image
    numbers = np.random.default_rng(1).standard_normal(0x1000, dtype=np.float32)
    tb.memory[DATA_BYTES : DATA_BYTES + 0x4000] = np.abs(numbers).tobytes()
    labels = np.arange(6, dtype="<u4").tobytes()
    tb.memory[DATA_BYTES + LABELS : DATA_BYTES + LABELS + len(labels)] = labels
    await tb.reset()
    # The core's start is no kernel's, and it is not idle once one is asked for.
    tb.control(run=1)
    while not tb.status()["idle"]:
        await RisingEdge(dut.clk)
    for number, (kernel, arguments) in enumerate(shapes()):
        slot = firmware.slot(Command(kernel, arguments), [Window(DATA_BYTES, 0x8000)])
        place = base + QUEUE_BYTES + 256 * number
        tb.memory[place : place + 256] = np.array(slot, dtype="<u4").tobytes()
        tb.head = number + 1
        tb.control(run=1)
        begin = tb.cycle
        while not (status := tb.status())["idle"] or status["tail"] != tb.head:
            await RisingEdge(dut.clk)
            assert not status["cause"], status
            if status["idle"]:
                begin = tb.cycle
        cycles = tb.cycle - begin
        model = kernel_cycles(kernel, tuple(arguments), read_cycles=READ_CYCLES, clock_ratio=RATIO)
        error = f"{kernel} {arguments}: {cycles}, model {model:.0f}"
        assert number == 0 or abs(model / cycles - 1) < 0.05, error
