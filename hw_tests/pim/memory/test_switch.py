"""Switch between banks, host and vaults: addresses, tags, order, runs of one source."""

from __future__ import annotations

import pytest

from hw.pim.config import configure
from hw.pim.memory.switch import MemorySwitch
from hw.pim.vault.timing import vault_part
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench

OPTIONS = {"rows": 1, "columns": 3, "bank_bytes": 1 << 14}


def test_switch() -> None:
    geometry = vault_part("tiny").with_capacity(2 * OPTIONS["bank_bytes"]).geometry
    run_bench(
        MemorySwitch(config=configure("tiny", **OPTIONS), geometry=geometry),
        top="memory_switch",
        module="hw_tests.pim.memory.switch_bench",
        parameters=OPTIONS,
    )


def test_one_bank() -> None:
    config = configure("tiny", rows=1, columns=1, total=16, bank_bytes=1 << 14)
    switch = MemorySwitch(config=config, geometry=vault_part("tiny").geometry)
    assert "module switch" in to_verilog(switch, "switch")


def test_refuses_other_vaults() -> None:
    with pytest.raises(ValueError, match="must hold the vault_bytes of a bank, 16384, got 32768"):
        MemorySwitch(
            config=configure("tiny", bank_bytes=1 << 13), geometry=vault_part("tiny").geometry
        )
