"""The pool as it is written as Verilog: the driver's works, bit for bit the golden model's."""

from __future__ import annotations

from hw.pim.config import PIM_PRESETS
from hw.pim.vault.timing import vault_part
from hw_tests.bench import run_bench
from hw_tests.pim.pool_system import PoolSystem


def test_works() -> None:
    run_bench(
        PoolSystem(PIM_PRESETS["tiny"], vault_part("hmc2")),
        top="pim_pool_system",
        module="hw_tests.pim.pool_bench",
        parameters={"preset": "tiny", "stalls": "random"},
        optimization="-Og",
    )
