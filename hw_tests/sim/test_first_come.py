"""The merge of two AXI4 managers, between managers and a memory that are not its own."""

from __future__ import annotations

import pytest

from hw.axi.bus import AXI4Signature
from hw.sim.first_come import FirstComeMerge
from hw_tests.bench import run_bench
from hw_tests.soak import for_soak


@pytest.mark.parametrize("stalls", ["none", "random", *for_soak("heavy")])
def test_first_come(stalls: str) -> None:
    """Data of both managers, and that nobody overtakes, at each amount of stalls."""
    run_bench(
        FirstComeMerge(AXI4Signature(addr_width=16, data_width=512)),
        top="first_come",
        module="hw_tests.sim.first_come_bench",
        parameters={"stalls": stalls},
    )
