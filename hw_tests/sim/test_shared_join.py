"""The shared join, between managers and a memory that are not its own."""

from __future__ import annotations

import pytest

from hw.sim.shared_join import SharedJoin
from hw_tests.bench import run_bench
from hw_tests.stalls import STALLS


@pytest.mark.parametrize("stalls", STALLS)
def test_shared_join(stalls: str) -> None:
    """Data of both managers, and that nobody overtakes, at each amount of stalls."""
    run_bench(
        SharedJoin(addr_width=16),
        top="shared_join",
        module="hw_tests.sim.shared_join_bench",
        parameters={"stalls": stalls},
    )
