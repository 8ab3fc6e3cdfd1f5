"""Memory of the stack, all vaults behind the switch: data, order, fairness, bandwidth, timing."""

from __future__ import annotations

import pytest

from hw.pim.config import PIM_PRESETS, configure
from hw.pim.vault.timing import vault_part
from hw.sim.pim_memory import PimMemory
from hw_tests.bench import run_bench

OPTIONS = {"preset": "tiny", "rows": 1, "columns": 3, "bank_bytes": 1 << 17}


def test_traffic() -> None:
    run_bench(
        PimMemory(configure(**OPTIONS), vault_part("hmc2")),
        top="pim_memory",
        module="hw_tests.sim.pim_memory_bench",
        parameters=OPTIONS,
    )


def test_refuses_banks_too_small_for_the_vault() -> None:
    with pytest.raises(ValueError, match="must be 4096 bytes"):
        PimMemory(configure("tiny", bank_bytes=1 << 11), vault_part("hmc2"))


@pytest.mark.parametrize("preset", list(PIM_PRESETS))
def test_presets(preset: str) -> None:
    memory = PimMemory(PIM_PRESETS[preset], vault_part("hmc2"))
    assert memory.ports == [
        *(f"bank_{bank}" for bank in range(PIM_PRESETS[preset].banks)),
        "host",
    ]
