"""cocotb side of the operator tests: plays vectors and compares every result."""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np

from golden import floats
from hw_tests.bench import bench_parameters
from hw_tests.float.player import play
from hw_tests.float.vectors import fp32_operands

OPERANDS = {"add": 2, "mul": 2, "div": 2, "sqrt": 1, "sign": 1, "maximum": 2}
ARITHMETIC = {"add": np.add, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}
LEAST_NORMAL = 2.0**-126


def flush(values: Any) -> Any:
    """FP32 values with zeros for subnormal numbers."""
    return np.where(np.abs(values) < LEAST_NORMAL, np.copysign(np.float32(0), values), values)


def compare(vectors: Any, got: Any, expected: Any) -> None:
    """Fails with the first mismatches, operands and all."""
    bad = np.flatnonzero(got != expected)
    lines = [
        f"{' '.join(f'{word:08x}' for word in vectors[i])}: got {got[i]:08x}, "
        f"expected {expected[i]:08x}"
        for i in bad[:10]
    ]
    assert not len(bad), f"{len(bad)} of {len(got)} results differ\n" + "\n".join(lines)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def exhaustive(dut: Any) -> None:
    """Every operand (pair) of a small format in each of several depths, against the exact model."""
    parameters = bench_parameters()
    form = floats.BinaryFormat(**parameters["format"])
    operation = parameters["operation"]
    count = 1 << (1 + form.exponent_bits + form.fraction_bits)
    numbers = range(count)
    if OPERANDS[operation] == 1:
        tuples = [(a,) for a in numbers]
    else:
        tuples = [(a, b) for a in numbers for b in numbers]
    function = getattr(floats, operation)
    expected = np.array([function(form, *operands) for operands in tuples], dtype=np.uint32)
    vectors = np.array(tuples, dtype=np.uint32)
    for name in parameters["names"]:
        got = await play(dut, name, vectors, results=1, density=parameters["density"])
        compare(vectors, got[:, 0], expected)


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def fp32(dut: Any) -> None:
    """Random and directed FP32 operands, against numpy, in each of several depths: the default one
    at several densities, the others shorter. Without subnormals what is less than the least normal
    number is flushed here: in double it is exact, or a quotient that is far enough from it."""
    parameters = bench_parameters()
    operation = parameters["operation"]
    a, b = fp32_operands(parameters["seed"], sum(parameters["counts"].values()), operation)
    flushed = not parameters["subnormals"]
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
        else:
            # Which zero numpy takes depends on the machine.
            zeros = (x == 0) & (y == 0)
            zero = np.where(np.signbit(x) & np.signbit(y), np.float32(-0.0), np.float32(0))
            result = np.where(zeros, zero, np.maximum(x, y))
    expected = np.where(np.isnan(result), np.uint32(0x7FC00000), result.view(np.uint32))
    vectors = np.stack([a, b][: OPERANDS[operation]], axis=1)
    # A share of both kinds of operands for each density.
    mixed = np.random.default_rng(parameters["seed"]).permutation(len(vectors))
    for name in parameters["names"]:
        order = mixed
        counts = parameters["counts" if name == parameters["default"] else "short"]
        for density, count in counts.items():
            part, order = order[:count], order[count:]
            got = await play(dut, name, vectors[part], results=1, density=int(density))
            compare(vectors[part], got[:, 0], expected[part])
