"""Floating-point formats and what the operators refuse."""

from __future__ import annotations

import pytest

from hw.float.add import FloatAdd
from hw.float.div import FloatDiv
from hw.float.format import FP32, FloatFormat
from hw.float.mul import FloatMul
from hw.float.sqrt import FloatSqrt
from hw.verilog import to_verilog
from sw_driver.simulator.synthesis import dsp_cells


def test_fp32() -> None:
    assert (FP32.width, FP32.bias, FP32.max_exponent) == (32, 127, 255)
    assert FP32.infinity == 0x7F800000
    assert FP32.canonical_nan == 0x7FC00000
    assert FP32.name == "fp32"


def test_small_format() -> None:
    fmt = FloatFormat(exponent_bits=4, fraction_bits=3)
    assert (fmt.width, fmt.bias, fmt.infinity, fmt.canonical_nan) == (8, 7, 0x78, 0x7C)
    assert FloatAdd(format=fmt).module_name == "float_e4m3_add"


@pytest.mark.parametrize(
    ("exponent_bits", "fraction_bits", "message"),
    [(8, 1, "fraction_bits is 1"), (1, 2, "exponent_bits is 1"), (3, 4, "exponent_bits is 3")],
)
def test_refuses_widths(exponent_bits: int, fraction_bits: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)


def test_refuses_what_is_not_a_format() -> None:
    with pytest.raises(ValueError, match="format is 32, expected a FloatFormat"):
        FloatAdd(format=32)  # pyright: ignore


def test_latencies() -> None:
    # The benches measure that these are the true ones.
    assert [kind().latency for kind in (FloatAdd, FloatMul, FloatDiv, FloatSqrt)] == [5, 5, 17, 15]


def test_multiplier_takes_two_dsp_blocks() -> None:
    unit = FloatMul()
    assert dsp_cells(to_verilog(unit, unit.module_name), top=unit.module_name) == {"DSP48E2": 2}
