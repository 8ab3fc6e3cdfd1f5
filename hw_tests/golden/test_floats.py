"""The exact model against numpy's own arithmetic."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from golden import floats
from hw_tests.float.vectors import fp32_operands

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
OPERATIONS = ["add", "mul", "div", "sqrt"]


def numpy_bits(operation: str, a: NDArray, b: NDArray, nan: int) -> NDArray:
    with np.errstate(all="ignore"):
        result = {
            "add": lambda: a + b,
            "mul": lambda: a * b,
            "div": lambda: a / b,
            "sqrt": lambda: np.sqrt(a),
        }[operation]()
    bits = result.view(np.uint16 if result.dtype == np.float16 else np.uint32)
    return np.where(np.isnan(result), nan, bits)


def check(form: floats.BinaryFormat, operation: str, a: NDArray, b: NDArray, kind: type) -> None:
    expected = numpy_bits(operation, a.view(kind), b.view(kind), form.nan)
    function = getattr(floats, operation)
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    got = [function(form, x) if operation == "sqrt" else function(form, x, y) for x, y in pairs]
    bad = np.flatnonzero(np.array(got) != expected)
    assert not len(bad), [
        f"{operation} {a[i]:x} {b[i]:x}: {got[i]:x}, numpy {expected[i]:x}" for i in bad[:5]
    ]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_fp32_as_numpy(operation: str) -> None:
    a, b = fp32_operands(SEED, 20_000, operation)
    form = floats.BinaryFormat(exponent_bits=8, fraction_bits=23)
    check(form, operation, a, b, np.float32)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_fp16_as_numpy(operation: str) -> None:
    rng = np.random.default_rng(SEED)
    a, b = rng.integers(0, 1 << 16, (2, 20_000), dtype=np.uint16)
    # Operands with nearby exponents too, so that additions round and cancel.
    b[::2] = (a[::2].astype(np.int32) + rng.integers(-4096, 4096, len(b) // 2)) & 0x7FFF
    form = floats.BinaryFormat(exponent_bits=5, fraction_bits=10)
    check(form, operation, a, b, np.float16)


def test_e4m3_by_hand() -> None:
    form = floats.BinaryFormat(exponent_bits=4, fraction_bits=3)
    one, least, largest = 0x38, 0x01, 0x77
    assert (form.infinity, form.nan, form.emin) == (0x78, 0x7C, -6)
    assert form.value(one) == 1
    assert form.value(largest) == 240
    assert floats.add(form, largest, 0x48) == largest  # 240 + 4: below the midpoint 248
    assert floats.add(form, largest, 0x50) == form.infinity  # 240 + 8: a tie, to the even side
    assert floats.mul(form, least, 0x30) == 0  # half the least number: a tie, to even
    assert floats.mul(form, 0x03, 0x30) == 0x02
    assert floats.div(form, one, 0x80) == 0xF8  # 1 / -0
    assert floats.sqrt(form, 0x40) == 0x3B  # sqrt(2) = 1.414, steps of 1/8
    assert floats.sqrt(form, 0x80) == 0x80
    assert floats.compare(form, form.infinity, largest) == 0
    assert floats.compare(form, 0xF8, 0xF7) == 1  # -infinity and the least number
    assert floats.compare(form, 0x80, 0) == 2
    assert floats.from_integer(form, 0x80) == 0xF0  # -128
    assert floats.from_integer(form, 0x11) == 0x58  # 17: a tie of 16 and 18, to the even side
    assert floats.to_integer(form, 0x44, 0) == 3
    assert floats.to_integer(form, 0xC2, 0) == 0xFE  # -2.5
    assert floats.to_integer(form, 0xC6, 1) == 0xFD  # -3.5
    assert floats.to_integer(form, 0x70, 0) == floats.to_integer(form, form.nan, 0) == 0x7F
    assert floats.to_integer(form, 0xF0, 0) == floats.to_integer(form, 0xF8, 0) == 0x80
    assert floats.to_integer(form, 0x80 | form.nan, 0) == 0x7F


def test_flushed_e4m3_by_hand() -> None:
    form = floats.BinaryFormat(exponent_bits=4, fraction_bits=3, subnormals=False)
    least, half, one, two = 0x08, 0x30, 0x38, 0x40  # the least normal number is 2^-6
    assert floats.add(form, least, 0x87) == least  # minus a subnormal number, taken for -0
    assert floats.add(form, 0x07, 0x87) == 0
    assert floats.add(form, 0x87, 0x87) == 0x80
    assert floats.add(form, 0x88, 0x09) == 0  # 2^-9
    assert floats.add(form, least, 0x89) == 0x80
    assert floats.mul(form, 0x0F, half) == 0  # 2^-6 * 15/16 would be rounded to 2^-6
    assert floats.mul(form, 0x8F, 0x31) == 0x88  # 2^-6 * 135/128 is rounded to it
    assert floats.mul(form, 0x07, form.infinity) == form.nan
    assert floats.div(form, one, 0x87) == 0x80 | form.infinity
    assert floats.div(form, 0x07, 0x87) == form.nan
    assert floats.div(form, 0x88, two) == 0x80
    assert floats.sqrt(form, 0x87) == 0x80
    assert floats.maximum(form, 0x87, 0x80) == 0x80
    assert floats.maximum(form, 0x87, 0x01) == 0
    assert floats.sign(form, 0x87) == 0x80


@pytest.mark.parametrize("operation", OPERATIONS)
def test_flushed_is_what_is_kept_but_for_subnormal_numbers(operation: str) -> None:
    a, b = fp32_operands(SEED, 20_000, operation)
    form = floats.BinaryFormat(exponent_bits=8, fraction_bits=23)
    flushed = replace(form, subnormals=False)
    function = getattr(floats, operation)
    least = 1 << form.fraction_bits
    differing = 0
    for operands in zip(a.tolist(), b.tolist(), strict=True):
        if operation == "sqrt":
            operands = operands[:1]
        zeroed = [form.join(form.split(each)[0], 0) if form.split(each)[1] < least else each
                  for each in operands]  # fmt: skip
        wanted, found = function(form, *zeroed), function(flushed, *operands)
        sign, magnitude = form.split(wanted)
        if magnitude < least or (magnitude == least and found != wanted):
            # Rounded up to the least normal number: no sum and no root is.
            assert magnitude < least or operation in ("mul", "div")
            wanted = form.join(sign, 0)
        assert found == wanted, [f"{each:08x}" for each in operands]
        differing += found != function(form, *operands)
    assert differing > (0 if operation == "sqrt" else 100)
