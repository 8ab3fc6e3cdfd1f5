"""The pool as it is written as Verilog: the driver's works, bit for bit the golden model's."""

from __future__ import annotations

import pytest

from hw.pim.config import PIM_PRESETS
from hw.pim.vault.timing import vault_part
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.pim.pool_system import PoolSystem
from hw_tests.stalls import STALLS

TOP = "pim_pool_system"


@pytest.fixture(scope="module")
def verilog() -> str:
    return to_verilog(PoolSystem(PIM_PRESETS["tiny"], vault_part("hmc2")), TOP)


@pytest.mark.parametrize("stalls", STALLS)
def test_works(verilog: str, stalls: str) -> None:
    run_bench(
        verilog,
        top=TOP,
        module="hw_tests.pim.pool_bench",
        parameters={"preset": "tiny", "stalls": stalls},
        optimization="-Og",
    )
