"""A channel with an AXI4 port in place of the DDR4 controller, on memories that are not ours."""

from __future__ import annotations

from functools import cache

import pytest

from hw.axdimm.channel import axdimm_channel
from hw.axdimm.config import configure
from hw.verilog.writer import to_verilog
from hw_tests.axi_memory import HABITS
from hw_tests.bench import run_bench

# Host reads are in time with the slowest of the memories, too.
CONFIG = configure("tiny", memory="axi4", read_latency_fabric_cycles=400)


@cache
def verilog() -> str:
    return to_verilog(axdimm_channel(CONFIG), "axi_channel")


@pytest.mark.parametrize(
    ("stalls", "habit"),
    [
        ("none", "eager"),
        ("heavy", "eager"),
        *(("random", habit) for habit in HABITS[1:]),
        ("none", "foreign"),
        ("random", "foreign"),
    ],
)
def test_axi_channel(stalls: str, habit: str) -> None:
    """Copies, switches of the mode, Adam steps and errors, with every byte compared."""
    run_bench(
        verilog(),
        top="axi_channel",
        module="hw_tests.axdimm.axi_channel_bench",
        parameters={
            "capacity_bytes": CONFIG.capacity_bytes,
            "read_latency": CONFIG.read_latency_fabric_cycles,
            "gaps": "none",
            "stalls": stalls,
            "habit": habit,
        },
    )
