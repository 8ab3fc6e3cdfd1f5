"""Blocks in codes of eight bits, against the golden model."""

from __future__ import annotations

import os

import pytest

from hw.float.format import FP32, FP32_FLUSHED
from hw.narrow.quantizer import Quantizer
from hw_tests.bench import run_bench

PAIRS = {
    "signed": ("linear_signed", "dynamic_signed"),
    "unsigned": ("linear_unsigned", "dynamic_unsigned"),
}
FORMATS = {"kept": FP32, "flushed": FP32_FLUSHED}


@pytest.mark.parametrize(
    ("lanes", "kind", "subnormals", "blocks"),
    [(16, "signed", "kept", 210), (8, "unsigned", "kept", 70), (1, "signed", "flushed", 14)],
)
def test_blocks(lanes: int, kind: str, subnormals: str, blocks: int) -> None:
    unit = Quantizer(lanes=lanes, tables=PAIRS[kind], format=FORMATS[subnormals])
    run_bench(
        unit,
        top="quantizer",
        module="hw_tests.narrow.quantizer_bench",
        parameters={
            "lanes": lanes,
            "latency": unit.latency,
            "tables": PAIRS[kind],
            "subnormals": subnormals,
            "blocks": blocks,
            "seed": int(os.environ.get("NEARMEM_TEST_SEED", "1")),
        },
    )


def test_latency() -> None:
    # The bench measures that they are the true ones.
    pair = PAIRS["signed"]
    assert [Quantizer(lanes=lanes, tables=pair).latency for lanes in (16, 8, 1)] == [52, 51, 48]
