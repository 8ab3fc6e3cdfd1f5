"""cocotb tests of the sums of products: every target of both lists, and when they are there."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge

from hw_tests.pim.shared_multiplier_sample import FACTORS, PRODUCTS, WIDTH

RUNS = 3000
NAMES = ("plus", "minus", "narrow", "ends", "of_plus")


def expected(name: str, held: dict[str, int], factors: dict[str, int]) -> dict[str, int]:
    """The targets after list ``name``, in Python's integers."""
    short, middle, long, other, base = factors.values()
    sums = {
        "one": {
            "plus": base + short * long + long * middle,
            "minus": base - middle * other,
            "narrow": middle,
        },
        "two": {
            "ends": short - (long * other + 5 * middle + short * short),
            "of_plus": held["plus"] + other * short + long,
        },
    }
    widths = dict.fromkeys(NAMES, WIDTH) | {"narrow": 7}
    return held | {target: value % (1 << widths[target]) for target, value in sums[name].items()}


def draw(rng: random.Random, width: int) -> int:
    every = (1 << width) - 1
    return rng.choice((0, 1, every, every - 1, 1 << (width - 1), rng.getrandbits(width)))


@cocotb.test()
async def test_sums(dut: Any) -> None:
    """Targets change by their own list only, and are all there in the one cycle with ``done``."""
    rng = random.Random(1)
    dut.start_one.value = dut.start_two.value = 0
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    await ClockCycles(dut.clk, 2)
    await FallingEdge(dut.clk)
    dut.rst.value = 0
    held = dict.fromkeys(NAMES, 0)
    for _ in range(RUNS):
        for _ in range(rng.choice((0, 0, 0, 1, 2, 5))):
            assert not dut.done.value
            for name, width in FACTORS.items():
                getattr(dut, name).value = draw(rng, width)
            await FallingEdge(dut.clk)
            assert {name: int(getattr(dut, name).value) for name in NAMES} == held
        factors = {name: draw(rng, width) for name, width in FACTORS.items()}
        factors["base"] = draw(rng, WIDTH)
        for name, value in factors.items():
            getattr(dut, name).value = value
        which = rng.choice(list(PRODUCTS))
        start = getattr(dut, f"start_{which}")
        start.value = 1
        cycles = PRODUCTS[which] + 3
        for cycle in range(1, cycles + 1):
            await FallingEdge(dut.clk)
            start.value = 0
            assert bool(dut.done.value) == (cycle == cycles), f"after {cycle} of {cycles} cycles"
        held = expected(which, held, factors)
        assert {name: int(getattr(dut, name).value) for name in NAMES} == held
        await FallingEdge(dut.clk)
