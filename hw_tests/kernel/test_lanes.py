"""Runs the bench of the lanes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from amaranth.hdl import Fragment
from amaranth.hdl._ast import Switch  # not exported

from hw.kernel.config import KernelConfig
from hw.kernel.lanes import Lanes
from hw.kernel.unit import RuleUnit
from hw.rules import rule
from hw.verilog.writer import VerilogPlatform, to_verilog
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


def test_each_register_has_the_enable() -> None:
    """No result depends on it, but what the lanes take when they have no work."""
    config = replace(CONFIGS[4], clocking="enable", rules=(PLAIN.name, "sum_squares"))
    lanes = Lanes(config, units=[UNIT, RuleUnit(rule("sum_squares"))])
    parts = [Fragment.get(lanes, VerilogPlatform())]
    held = []
    for part in parts:
        parts += [below for below, *_ in part.subfragments]
        if "compute" in part.statements:
            (statement,) = part.statements["compute"]
            assert isinstance(statement, Switch)
            held.append(statement.test)
    assert len(held) == 2  # the lanes and their sums
    assert {getattr(test, "name", None) for test in held} == {"enable"}


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
