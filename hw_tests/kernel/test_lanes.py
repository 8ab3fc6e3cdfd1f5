"""Runs the bench of the lanes."""

from __future__ import annotations

from functools import cache

import pytest

from hw.kernel.config import KernelConfig
from hw.kernel.lanes import AdamLanes
from hw.verilog import to_verilog
from hw_tests.bench import run_bench
from hw_tests.kernel.plain_rule import plain_unit
from hw_tests.side_by_side import SideBySide

CONFIGS = {
    lanes: KernelConfig(lanes=lanes, block_bytes=256, address_width=16, memory_bytes=1 << 16)
    for lanes in (1, 4, 16)
}


UNIT = plain_unit()


@cache
def verilog() -> str:
    lanes = {f"lanes{each}": AdamLanes(config, unit=UNIT) for each, config in CONFIGS.items()}
    return to_verilog(SideBySide(lanes), "adam_lanes")


@pytest.mark.parametrize("lanes", CONFIGS)
def test_lanes(lanes: int) -> None:
    """When rounds begin, and their results, with operands and room at once, late and rare."""
    config = CONFIGS[lanes]
    run_bench(
        verilog(),
        top="adam_lanes",
        module="hw_tests.kernel.lanes_bench",
        parameters={
            "name": f"lanes{lanes}",
            "lanes": lanes,
            "block_beats": config.block_beats,
            "round_bits": config.rounds["last_round"].width,
            "latency": UNIT.latency,
        },
    )
