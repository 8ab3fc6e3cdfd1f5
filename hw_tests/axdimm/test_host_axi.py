"""The arbiter with a host on AXI4."""

from __future__ import annotations

from functools import cache

import pytest

from hw.axdimm.arbiter import Arbiter
from hw.axdimm.host_axi import HostAxiPort
from hw.axdimm.memory_join import ExclusiveJoin
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.soak import for_soak

ADDRESS_WIDTH = 18


@cache
def verilog() -> str:
    arbiter = Arbiter(
        join=ExclusiveJoin(addr_width=ADDRESS_WIDTH),
        port=HostAxiPort(address_width=ADDRESS_WIDTH),
        lanes=4,
        block_bytes=1024,
        rules=[0xDEADBEEF],
    )
    return to_verilog(arbiter, "arbiter")


@pytest.mark.parametrize("stalls", ["none", *for_soak("random"), "heavy"])
def test_host_axi(stalls: str) -> None:
    """Bursts of every kind, registers, errors and modes, at each amount of stalls."""
    run_bench(
        verilog(),
        top="arbiter",
        module="hw_tests.axdimm.host_axi_bench",
        parameters={"address_width": ADDRESS_WIDTH, "stalls": stalls},
    )
