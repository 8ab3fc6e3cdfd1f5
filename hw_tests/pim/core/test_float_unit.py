"""The float unit's functions against numpy, through the port of a core."""

from __future__ import annotations

import os

from hw.pim.core.float_unit import FloatUnit
from hw_tests.bench import run_bench

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))


def test_functions() -> None:
    run_bench(
        FloatUnit(),
        top="float_unit",
        module="hw_tests.pim.core.float_unit_bench",
        parameters={"count": 5000, "seed": SEED},
    )
