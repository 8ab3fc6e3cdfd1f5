"""cocotb side of the quantizer's test: plays blocks, with gaps and without, and compares."""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from golden import narrow
from hw_tests.bench import bench_parameters
from hw_tests.float.vectors import SPECIAL, uniform_bits
from hw_tests.streams import value_of

PARAMETERS = bench_parameters()
RNG = np.random.default_rng(PARAMETERS["seed"])
BLOCK = narrow.BLOCK


def blocks(count: int, table: str) -> Any:
    """Numbers of as many blocks, each of one of these kinds: a trained state's, at most a power of
    two; next to the thresholds; any number; all zeros; with infinities and NaNs; subnormal."""
    made = np.empty((count, BLOCK), np.float32)
    limits = narrow.thresholds(table)
    for number, block in enumerate(made):
        kind = number % 7
        scale = np.float32(2.0) ** RNG.integers(-30, 30)
        block[:] = RNG.normal(size=BLOCK).astype(np.float32) ** 3 * scale
        if kind == 1:
            block[:] = RNG.choice(limits, BLOCK) * scale
            block.view(np.int32)[:] += RNG.integers(-1, 2, BLOCK, dtype=np.int32)
            block[RNG.integers(BLOCK)] = scale
        elif kind == 2:
            block[:] = uniform_bits(RNG, BLOCK).view(np.float32)
        elif kind == 3:
            block[:] = RNG.choice(np.array([0, -0.0], np.float32), BLOCK)
            block[: RNG.integers(0, 2)] = RNG.choice(SPECIAL.view(np.float32))
        elif kind == 4:
            block[RNG.integers(BLOCK)] = np.float32(np.inf) * (1 if RNG.random() < 0.5 else -1)
        elif kind == 5:
            bits = RNG.integers(20)  # fewer than 22, and the reciprocal is infinite
            block.view(np.uint32)[:] = RNG.integers(0, 1 << 4 + bits, BLOCK, dtype=np.uint32)
        elif kind == 6:
            # The reciprocal of the scale is subnormal.
            block.view(np.uint32)[:] = RNG.integers(0, 0x7F800000, BLOCK, dtype=np.uint32)
            block[0] = np.float32(3e38)
        if table.endswith("_unsigned") and kind != 2:
            block[:] = np.abs(block)
    return made


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def stream(dut: Any) -> None:
    """Codes and scales of many blocks at the right cycle, with each table and at each density."""
    lanes, beats = PARAMETERS["lanes"], BLOCK // PARAMETERS["lanes"]
    cocotb.start_soon(Clock(dut.clk, 2, unit="step").start())
    edge = RisingEdge(dut.clk)
    for which, table in enumerate(PARAMETERS["tables"]):
        for density in (1.0, 0.6):
            dut.rst.value, dut.i_valid.value, dut.select.value = 1, 0, which
            await edge
            await edge
            dut.rst.value = 0
            given = blocks(PARAMETERS["blocks"], table)
            with np.errstate(all="ignore"):
                expected = narrow.quantize(given.ravel(), table, PARAMETERS["subnormals"])
            words = given.view(np.uint32).reshape(-1, lanes)
            codes = expected.codes.reshape(-1, lanes)
            scales = expected.scales.view(np.uint32)
            due: dict[int, int] = {}
            """Beats of codes by the cycle in which they are to leave."""
            sent = cycle = 0
            while sent < len(words) or cycle <= max(due):
                valid = sent < len(words) and RNG.random() < density
                dut.i_valid.value = int(valid)
                if valid:
                    for lane, word in enumerate(words[sent]):
                        getattr(dut, f"i_{lane}").value = int(word)
                    sent += 1
                    if sent % beats == 0:
                        first = cycle + PARAMETERS["latency"]
                        due |= {first + beat: sent - beats + beat for beat in range(beats)}
                await edge
                beat = due.get(cycle)
                assert value_of(dut.o_valid) == (beat is not None), f"o_valid in cycle {cycle}"
                if beat is not None:
                    got = [value_of(getattr(dut, f"o_{lane}")) for lane in range(lanes)]
                    block = beat // beats
                    assert value_of(dut.o_scale) == scales[block], f"scale of block {block}"
                    assert got == list(codes[beat]), (
                        f"{table}, beat {beat}, {words[beat]} over {scales[block]:08x}: "
                        f"got {got}, expected {codes[beat]}"
                    )
                cycle += 1
