"""Floating-point operators: small formats exhaustively, FP32 against numpy."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from hw.float.add import FloatAdd
from hw.float.compare import FloatCompare
from hw.float.div import FloatDiv
from hw.float.format import FP32, FloatFormat
from hw.float.integer import FloatFromInteger, FloatToInteger
from hw.float.maximum import FloatMaximum
from hw.float.mul import FloatMul
from hw.float.operator import FloatOperator
from hw.float.sign import FloatSign
from hw.float.sqrt import FloatSqrt
from hw_tests.bench import run_bench
from hw_tests.float.player import PLAYER_BUILD_ARGS, PLAYER_TOP, player_text
from hw_tests.soak import for_soak

KINDS: dict[str, type[FloatOperator]] = {
    "add": FloatAdd,
    "mul": FloatMul,
    "div": FloatDiv,
    "sqrt": FloatSqrt,
    "sign": FloatSign,
    "maximum": FloatMaximum,
    "compare": FloatCompare,
    "from_integer": FloatFromInteger,
    "to_integer": FloatToInteger,
}
SMALL = {
    "e4m3": FloatFormat(exponent_bits=4, fraction_bits=3),
    "e5m2": FloatFormat(exponent_bits=5, fraction_bits=2),
}
SUBNORMALS = {"kept": True, "flushed": False}
SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
FP32_COUNTS = {256: 50_000, 200: 20_000, 40: 10_000}
"""Vectors by the cycles of 256 that carry operands: without gaps, with some and with many.

All faults that were tried and that a million vectors find are found in the small formats, too.
"""
FEW_FP32_COUNTS = {256: 20_000, 40: 10_000}
"""The same where subnormal numbers are flushed, and for what is no arithmetic."""
SHORT_FP32_COUNTS = {200: 25_000}
"""The same for depths that are not the default, whose arithmetic the small formats test."""
SOAK_FACTOR = 10
"""Multiple of these counts that ``make soak`` takes."""
ROUNDLESS = {"sign", "maximum", "compare", "from_integer", "to_integer"}


def depths(kind: type[FloatOperator], fmt: FloatFormat) -> list[int]:
    """Those that are tested: of FP32 the default and both ends, of small formats all."""
    known = kind.depths(fmt)
    if fmt.width != FP32.width:
        return list(known)
    return sorted({min(known), kind.default_depth(fmt), max(known)})


@cache
def simulator(subnormals: bool) -> str:
    """One for all operators, formats and depths, since building takes longer than running."""
    return player_text(
        [
            kind(format=fmt, stages=stages)
            for fmt in (replace(each, subnormals=subnormals) for each in (FP32, *SMALL.values()))
            for kind in KINDS.values()
            for stages in depths(kind, fmt)
        ]
    )


def run(fmt: FloatFormat, testcase: str, **parameters: Any) -> None:
    run_bench(
        simulator(fmt.subnormals),
        top=PLAYER_TOP,
        module="hw_tests.float.operator_bench",
        testcase=testcase,
        build_args=PLAYER_BUILD_ARGS,
        parameters={
            "names": {
                operation: [
                    kind(format=fmt, stages=stages).module_name for stages in depths(kind, fmt)
                ]
                for operation, kind in KINDS.items()
            },
            **parameters,
        },
        optimization="-O1",
    )


@pytest.mark.parametrize(
    ("name", "subnormals"),
    [
        pytest.param(name, kept, id=f"{name}-{text}", marks=[pytest.mark.soak] * (count > 0))
        for count, (name, (text, kept)) in enumerate(product(SMALL, SUBNORMALS.items()))
    ],
)
def test_small_format_exhaustively(name: str, subnormals: bool) -> None:
    fmt = replace(SMALL[name], subnormals=subnormals)
    run(fmt, "exhaustive", format=asdict(fmt), density=200)


@pytest.mark.parametrize(
    ("subnormals", "factor"), [(True, 1), *for_soak((True, SOAK_FACTOR), (False, SOAK_FACTOR))]
)
def test_fp32_against_numpy(subnormals: bool, factor: int) -> None:
    def more(counts: dict[int, int]) -> dict[int, int]:
        return {density: factor * count for density, count in counts.items()}

    fmt = replace(FP32, subnormals=subnormals)
    run(
        fmt,
        "fp32",
        seed=SEED,
        subnormals=subnormals,
        counts={
            operation: more(
                FP32_COUNTS if subnormals and operation not in ROUNDLESS else FEW_FP32_COUNTS
            )
            for operation in KINDS
        },
        short=more(SHORT_FP32_COUNTS),
        defaults=[kind(format=fmt).module_name for kind in KINDS.values()],
    )
