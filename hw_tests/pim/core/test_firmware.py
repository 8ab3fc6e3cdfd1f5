"""The firmware on cores in RTL: kernels, works for the pools, and a barrier, without the host."""

from __future__ import annotations

from hw.pim.vault.timing import vault_part
from hw_tests.bench import run_bench
from hw_tests.pim.core.training_step import config_of
from hw_tests.pim.pool_system import PoolSystem


def test_a_step_of_training() -> None:
    run_bench(
        PoolSystem(config_of(4), vault_part("hmc2")),
        top="pim_pool_system",
        module="hw_tests.pim.core.firmware_bench",
        parameters={"cores": 4, "preset": "tiny", "stalls": "none"},
        optimization="-Og",
    )
