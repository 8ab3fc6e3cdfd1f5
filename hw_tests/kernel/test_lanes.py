"""Runs the bench of the lanes."""

from __future__ import annotations

from functools import cache

import pytest

from hw.kernel.config import KernelConfig
from hw.kernel.lanes import Lanes
from hw.kernel.unit import RuleUnit
from hw.verilog import to_verilog
from hw_tests.bench import run_bench
from hw_tests.kernel.plain_rule import PLAIN
from hw_tests.side_by_side import SideBySide

CONFIGS = {
    lanes: KernelConfig(
        rules=(PLAIN.name,), lanes=lanes, block_bytes=256, address_width=16, memory_bytes=1 << 16
    )
    for lanes in (1, 4, 16)
}


UNIT = RuleUnit(PLAIN)


@cache
def verilog() -> str:
    lanes = {f"lanes{each}": Lanes(config, units=[UNIT]) for each, config in CONFIGS.items()}
    return to_verilog(SideBySide(lanes), "lanes_side_by_side")


@pytest.mark.parametrize("lanes", CONFIGS)
def test_lanes(lanes: int) -> None:
    """When rounds begin, and their results, with operands and room at once, late and rare."""
    config = CONFIGS[lanes]
    run_bench(
        verilog(),
        top="lanes_side_by_side",
        module="hw_tests.kernel.lanes_bench",
        parameters={
            "name": f"lanes{lanes}",
            "lanes": lanes,
            "block_beats": config.block_beats,
            "round_bits": config.rounds["last_round"].width,
            "latency": UNIT.latency,
        },
    )
