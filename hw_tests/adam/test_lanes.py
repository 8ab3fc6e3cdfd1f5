"""Runs the bench of the lanes."""

from __future__ import annotations

import pytest

from hw.adam.config import KernelConfig
from hw.adam.lanes import AdamLanes
from hw_tests.adam.plain_rule import plain_unit
from hw_tests.bench import run_bench


@pytest.mark.parametrize("lanes", [8])
def test_lanes(lanes: int) -> None:
    config = KernelConfig(lanes=lanes, block_bytes=256, address_width=16, memory_bytes=1 << 16)
    unit = plain_unit()
    run_bench(
        AdamLanes(config, unit=unit, unit_name="plain_unit"),
        top="adam_lanes",
        module="hw_tests.adam.lanes_bench",
        parameters={
            "lanes": lanes,
            "block_beats": config.block_beats,
            "round_bits": config.rounds["last_round"].width,
            "latency": unit.latency,
        },
    )
