"""Floating-point operators: small formats exhaustively, FP32 against numpy."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest

from hw.float.add import FloatAdd
from hw.float.div import FloatDiv
from hw.float.format import FP32, FloatFormat
from hw.float.maximum import FloatMaximum
from hw.float.mul import FloatMul
from hw.float.operator import FloatOperator
from hw.float.sign import FloatSign
from hw.float.sqrt import FloatSqrt
from hw_tests.bench import run_bench
from hw_tests.float.player import PLAYER_BUILD_ARGS, PLAYER_TOP, player_text

KINDS: dict[str, type[FloatOperator]] = {
    "add": FloatAdd,
    "mul": FloatMul,
    "div": FloatDiv,
    "sqrt": FloatSqrt,
    "sign": FloatSign,
    "maximum": FloatMaximum,
}
SMALL = {
    "e4m3": FloatFormat(exponent_bits=4, fraction_bits=3),
    "e5m2": FloatFormat(exponent_bits=5, fraction_bits=2),
}
SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
FP32_COUNTS = {256: 1_000_000, 200: 100_000, 40: 50_000}
"""Vectors by the cycles of 256 that carry operands: without gaps, with some and with many."""


@cache
def simulator() -> str:
    """One for all operators and formats, since building takes longer than running."""
    formats = (FP32, *SMALL.values())
    return player_text([kind(format=fmt) for fmt in formats for kind in KINDS.values()])


def run(operation: str, fmt: FloatFormat, testcase: str, **parameters: Any) -> None:
    run_bench(
        simulator(),
        top=PLAYER_TOP,
        module="hw_tests.float.operator_bench",
        testcase=testcase,
        build_args=PLAYER_BUILD_ARGS,
        parameters={
            "operation": operation,
            "name": f"{fmt.name}_{operation}",
            **parameters,
        },
        optimization="-O1",
    )


@pytest.mark.parametrize("fmt", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("operation", KINDS)
def test_small_format_exhaustively(operation: str, fmt: FloatFormat) -> None:
    run(
        operation,
        fmt,
        "exhaustive",
        exponent_bits=fmt.exponent_bits,
        fraction_bits=fmt.fraction_bits,
        density=200,
    )


@pytest.mark.parametrize("operation", KINDS)
def test_fp32_against_numpy(operation: str) -> None:
    run(operation, FP32, "fp32", seed=SEED, counts=FP32_COUNTS)
