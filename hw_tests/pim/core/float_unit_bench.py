"""cocotb side of the float unit's test: all its functions in turn, as a core asks for them."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from cocotb.utils import get_sim_time

from hw_tests.bench import bench_parameters
from hw_tests.float.operator_bench import fp32_vectors
from hw_tests.streams import value_of

# The operation of funct7, the cycles it takes, what of a comparison counts.
GROUPS = {0: ("add", 6), 1: ("mul", 6), 2: ("div", 0), 3: ("compare", 2), 4: ("maximum", 2)}
GROUPS |= {5: ("to_integer", 4), 6: ("from_integer", 4)}
HOLDS = {0: [0, 1, 1], 1: [0, 1, 0], 2: [0, 0, 1]}
SIGN, NAN = np.uint32(1 << 31), np.uint32(0x7FC00000)


def operations(count: int, seed: int) -> list[tuple[int, int, int, int]]:
    """Functions, operands and results, in random order."""
    found = []
    for group, option in [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2),
                          (4, 0), (4, 1), (5, 0), (5, 1), (6, 0)]:  # fmt: skip
        operation = "sqrt" if (group, option) == (2, 1) else GROUPS[group][0]
        vectors, y = fp32_vectors(operation, count, seed, True)
        a, b = vectors[:, 0], vectors[:, -1]
        if operation == "compare":
            y = np.array(HOLDS[option])[y]
        elif (group, option) == (0, 1):
            b = b ^ SIGN
        elif (group, option) == (4, 0):
            a, b, y = a ^ SIGN, b ^ SIGN, np.where(y == NAN, NAN, y ^ SIGN)
        elif operation == "to_integer":
            a, y = a[b & 1 == option], y[b & 1 == option]
            b = ~a
        found += [
            (group << 3 | option, *each)
            for each in zip(a.tolist(), b.tolist(), y.tolist(), strict=False)
        ]
    random.Random(seed).shuffle(found)
    return found


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def functions(dut: Any) -> None:
    """Operations one after the other; some results wait, and the next operation with them."""
    parameters = bench_parameters()
    rng = random.Random(parameters["seed"])
    cocotb.start_soon(Clock(dut.clk, 2, unit="step").start())
    dut.rst.value = 1
    dut.i_valid.value = 0
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0
    edge, answer = RisingEdge(dut.clk), RisingEdge(dut.o_valid)
    for function, a, b, y in operations(**parameters):
        dut.i_valid.value, dut.i_function.value = 1, function
        dut.i_a.value, dut.i_b.value = a, b
        # The last result is taken, and this operation with it, after none or more of these.
        dut.o_ready.value = 0
        for _ in range(rng.choice([0, 0, 1, 4]) if value_of(dut.o_valid) else 0):
            await edge
            assert (value_of(dut.o_valid), value_of(dut.i_ready)) == (1, 0)
        dut.o_ready.value = 1
        await edge
        taken = get_sim_time("step")
        dut.i_valid.value = rng.randrange(2)
        dut.i_function.value, dut.i_a.value, dut.i_b.value = rng.getrandbits(6), b, a
        await answer
        got, cycles = value_of(dut.o_y), (get_sim_time("step") - taken) // 2 + 1
        what = f"{function} {a:08x} {b:08x}: {got:08x} after {cycles} cycles, expected {y:08x}"
        assert got == y, what
        assert cycles == (GROUPS[function >> 3][1] or cycles), what
