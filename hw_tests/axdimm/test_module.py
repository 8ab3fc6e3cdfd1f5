"""The whole module on its DRAM, driven over the host link."""

from __future__ import annotations

from functools import cache

import pytest

from hw.axdimm.config import configure
from hw.verilog.writer import to_verilog
from hw_tests.axdimm.system import ModuleWithDram
from hw_tests.bench import run_bench
from hw_tests.stalls import STALLS

CONFIG = configure("tiny")


@cache
def verilog() -> str:
    return to_verilog(ModuleWithDram(CONFIG), "module_with_dram")


@cache
def axi_verilog() -> str:
    return to_verilog(ModuleWithDram(configure("tiny", host="axi4")), "module_with_dram")


@pytest.mark.parametrize("stalls", STALLS)
def test_module_on_axi(stalls: str) -> None:
    """The same by a processor's accesses and bursts of AXI4."""
    run_bench(
        axi_verilog(),
        top="module_with_dram",
        module="hw_tests.axdimm.module_axi_bench",
        parameters={
            "capacity_bytes": CONFIG.capacity_bytes,
            "channels": CONFIG.channels,
            "stalls": stalls,
        },
    )


@pytest.mark.parametrize("gaps", STALLS)
def test_module(gaps: str) -> None:
    """Both channels at once, each with its own mode and work; between requests idle cycles."""
    run_bench(
        verilog(),
        top="module_with_dram",
        module="hw_tests.axdimm.module_bench",
        parameters={
            "capacity_bytes": CONFIG.capacity_bytes,
            "read_latency": CONFIG.read_latency_fabric_cycles,
            "channels": CONFIG.channels,
            "gaps": gaps,
        },
    )
