"""Units of narrow formats that take numbers one by one, against the golden model."""

from __future__ import annotations

import os
from functools import cache

import pytest

from hw.float.format import FP32, FP32_FLUSHED
from hw.narrow.bf16 import ToBf16
from hw.narrow.codes import CodeSearch, Dequantizer
from hw.narrow.philox import Philox, RandomWords
from hw.narrow.tables import TABLES
from hw_tests.bench import run_bench
from hw_tests.float.player import PLAYER_BUILD_ARGS, PLAYER_TOP, player_text

PAIRS = {
    "signed": ("linear_signed", "dynamic_signed"),
    "unsigned": ("linear_unsigned", "dynamic_unsigned"),
}
LANES = (2, 8, 16)
SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))


def of_codes(pair: tuple[str, str]) -> list[CodeSearch | Dequantizer]:
    dequantizers = [Dequantizer(tables=pair, format=each) for each in (FP32, FP32_FLUSHED)]
    return [CodeSearch(tables=pair), *dequantizers]


@cache
def simulator() -> str:
    return player_text(
        [
            ToBf16(),
            Philox(),
            *(RandomWords(lanes=lanes) for lanes in LANES),
            *(unit for pair in PAIRS.values() for unit in of_codes(pair)),
        ]
    )


@pytest.mark.parametrize("testcase", ["bf16", "generator", "codes"])
def test_unit(testcase: str) -> None:
    run_bench(
        simulator(),
        top=PLAYER_TOP,
        module="hw_tests.narrow.unit_bench",
        testcase=testcase,
        build_args=PLAYER_BUILD_ARGS,
        parameters={
            "seed": SEED,
            "lanes": LANES,
            "tables": PAIRS,
            "units": {
                kind: [unit.module_name for unit in of_codes(pair)] for kind, pair in PAIRS.items()
            },
        },
        optimization="-O1",
    )


def test_refuses_unknown_tables() -> None:
    with pytest.raises(ValueError, match=f"no table 'log' of codes; known: {', '.join(TABLES)}"):
        CodeSearch(tables=("linear_signed", "log"))


def test_refuses_lanes() -> None:
    with pytest.raises(ValueError, match="lanes must be a power of two from 1 to 16, got 12"):
        RandomWords(lanes=12)
