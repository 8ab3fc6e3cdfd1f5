"""cocotb side of the operator tests: plays vectors and compares every result.

All operators of a format play at the same time: the simulator asks in every step whether the clock
of any of them rises, which takes longer than what one of them does.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import gather

from golden import floats
from hw_tests.bench import bench_parameters
from hw_tests.float.player import play
from hw_tests.float.vectors import fp32_operands

OPERANDS = {
    "add": 2,
    "mul": 2,
    "div": 2,
    "sqrt": 1,
    "sign": 1,
    "maximum": 2,
    "compare": 2,
    "from_integer": 1,
    "to_integer": 2,
}
ARITHMETIC = {"add": np.add, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}
LEAST_NORMAL = 2.0**-126


def flush(values: Any) -> Any:
    """FP32 values with zeros for subnormal numbers."""
    return np.where(np.abs(values) < LEAST_NORMAL, np.copysign(np.float32(0), values), values)


async def check(
    dut: Any, name: str, vectors: Any, expected: Any, densities: Mapping[int, int]
) -> None:
    """Plays the operator ``name`` so many of the vectors at each density, one after the other.

    Fails with the first mismatches, operands and all.
    """
    for density, count in densities.items():
        part, vectors = vectors[:count], vectors[count:]
        right, expected = expected[:count], expected[count:]
        got = (await play(dut, name, part, results=1, density=density))[:, 0]
        bad = np.flatnonzero(got != right)
        lines = [
            f"{' '.join(f'{word:08x}' for word in part[i])}: got {got[i]:08x}, "
            f"expected {right[i]:08x}"
            for i in bad[:10]
        ]
        assert not len(bad), f"{name}: {len(bad)} of {len(got)} results differ\n" + "\n".join(lines)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def exhaustive(dut: Any) -> None:
    """Every operand (pair) of a small format in each of several depths, against the exact model."""
    parameters = bench_parameters()
    form = floats.BinaryFormat(**parameters["format"])
    numbers = range(1 << (1 + form.exponent_bits + form.fraction_bits))
    playing = []
    for operation, names in parameters["names"].items():
        tuples = [*product(numbers, repeat=OPERANDS[operation])]
        function = getattr(floats, operation)
        expected = np.array([function(form, *operands) for operands in tuples], dtype=np.uint32)
        vectors = np.array(tuples, dtype=np.uint32)
        densities = {parameters["density"]: len(vectors)}
        playing += [check(dut, name, vectors, expected, densities) for name in names]
    await gather(*playing)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def fp32(dut: Any) -> None:
    """Random and directed FP32 operands, against numpy, in each of several depths: the default one
    at several densities, the others shorter."""
    parameters = bench_parameters()
    playing = []
    for operation, names in parameters["names"].items():
        counts = parameters["counts"][operation]
        vectors, expected = fp32_vectors(
            operation, sum(counts.values()), parameters["seed"], parameters["subnormals"]
        )
        for name in names:
            chosen = counts if name in parameters["defaults"] else parameters["short"]
            densities = {int(density): count for density, count in chosen.items()}
            playing.append(check(dut, name, vectors, expected, densities))
    await gather(*playing)


def fp32_vectors(operation: str, count: int, seed: int, subnormals: bool) -> tuple[Any, Any]:
    """Operands, both kinds of them in any part, and numpy's results.

    Without subnormals what is less than the least normal number is flushed here: in double it is
    exact, or a quotient that is far enough from it.
    """
    a, b = fp32_operands(seed, count, operation)
    flushed = not subnormals
    x, y = (flush(each.view(np.float32)) if flushed else each.view(np.float32) for each in (a, b))
    with np.errstate(all="ignore"):
        if operation in ARITHMETIC:
            operands = (x, y)[: OPERANDS[operation]]
            result = ARITHMETIC[operation](*operands)
            exact = ARITHMETIC[operation](*(each.astype(np.float64) for each in operands))
            if flushed:
                zero = np.copysign(np.float32(0), result)
                result = np.where(np.abs(exact) < LEAST_NORMAL, zero, result)
        elif operation == "sign":
            result = np.where(x == 0, x, np.copysign(np.float32(1), x) + x * 0).astype(np.float32)
            result = np.where(np.isinf(x), np.copysign(np.float32(1), x), result)
        elif operation == "compare":
            result = ((x < y) + 2 * (x == y)).astype(np.uint32)
        elif operation == "from_integer":
            result = a.view(np.int32).astype(np.float32)
        elif operation == "to_integer":
            whole = np.where(b & 1, np.trunc(x), np.rint(x)).astype(np.float64)
            result = np.nan_to_num(whole, nan=2**31).clip(-(2**31), 2**31 - 1).astype(np.int32)
        else:
            # Which zero numpy takes depends on the machine.
            zeros = (x == 0) & (y == 0)
            zero = np.where(np.signbit(x) & np.signbit(y), np.float32(-0.0), np.float32(0))
            result = np.where(zeros, zero, np.maximum(x, y))
    expected = np.where(np.isnan(result), np.uint32(0x7FC00000), result.view(np.uint32))
    vectors = np.stack([a, b][: OPERANDS[operation]], axis=1)
    mixed = np.random.default_rng(seed).permutation(len(vectors))
    return vectors[mixed], expected[mixed]
