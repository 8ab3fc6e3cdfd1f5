"""Runs the bench of the sums, which those of the rules seldom take next to subnormal numbers."""

from __future__ import annotations

import pytest

from hw.kernel.config import SUBNORMALS
from hw.kernel.sums import LaneSums
from hw_tests.bench import run_bench


@pytest.mark.parametrize("subnormals", SUBNORMALS)
def test_sums_next_to_the_least_normal_number(subnormals: str) -> None:
    run_bench(
        LaneSums(lanes=4, format=SUBNORMALS[subnormals]),
        top="lane_sums",
        module="hw_tests.kernel.sums_bench",
        parameters={"subnormals": subnormals, "lanes": 4},
    )
