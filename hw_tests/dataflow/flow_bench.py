"""cocotb side of the pipeline builder's tests."""

from __future__ import annotations

from itertools import product
from typing import Any

import cocotb
import numpy as np

from hw_tests.bench import bench_parameters
from hw_tests.float.player import play

MU, LR, C = np.float32(0.9), np.float32(0.01), np.float32(-1.5)


def _bits(value: Any) -> int:
    return int(np.float32(value).view(np.uint32))


def _numbers(rows: int, columns: int) -> Any:
    rng = np.random.default_rng(bench_parameters()["seed"])
    return (
        rng.standard_normal((rows, columns)) * 10 ** rng.uniform(-3, 3, (rows, columns))
    ).astype(np.float32)


async def _check(dut: Any, name: str, given: Any, expected: list[Any]) -> None:
    for density in (256, 200, 40):
        got = await play(dut, name, given.view(np.uint32), results=len(expected), density=density)
        np.testing.assert_array_equal(got, np.stack(expected, axis=1).view(np.uint32))


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def momentum(dut: Any) -> None:
    """The two lines of momentum, without gaps, with some and with many."""
    dut.momentum_unit_mu.value = _bits(MU)
    dut.momentum_unit_lr.value = _bits(LR)
    zeros = np.array([*product((0.0, -0.0), repeat=3)], np.float32)
    given = np.concatenate([_numbers(5000, 3), zeros])
    p, g, m = given.T
    m_next = MU * m + g
    await _check(dut, "momentum_unit", given, [p - LR * m_next, m_next])


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def spread(dut: Any) -> None:
    """Values delayed by different times, negative ones and inputs that go straight through."""
    dut.spread_unit_c.value = _bits(C)
    given = _numbers(5000, 2)
    a, b = given.T
    total = a + C * b
    ratio = -a / np.sqrt(total * total)
    await _check(dut, "spread_unit", given, [ratio - b, -total, a, total + ratio])


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def delay(dut: Any) -> None:
    """Every word comes out, exactly as many cycles later as the delay says."""
    parameters = bench_parameters()
    rng = np.random.default_rng(parameters["seed"])
    words = rng.integers(0, 1 << 13, (500, 1), dtype=np.uint32)
    name = f"delay_line_{parameters['cycles']}"
    for density in (256, 200, 40):
        got = await play(dut, name, words, results=1, density=density)
        np.testing.assert_array_equal(got, words)
