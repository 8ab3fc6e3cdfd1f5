"""The divider that takes one operation at a time; FP32 is tested with the unit that has it."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from hw.float.div_sqrt import FloatDivSqrt
from hw.float.format import FP32_FLUSHED, FloatFormat
from hw_tests.bench import run_bench


def test_small_format_exhaustively() -> None:
    fmt = FloatFormat(exponent_bits=4, fraction_bits=3)
    run_bench(
        FloatDivSqrt(format=fmt),
        top="div_sqrt",
        module="hw_tests.float.div_sqrt_bench",
        parameters=asdict(fmt),
    )


def test_refuses_a_format_without_subnormals() -> None:
    with pytest.raises(ValueError, match="format is fp32_flush, expected one with subnormals"):
        FloatDivSqrt(format=FP32_FLUSHED)
