"""A vault, controller with device: data, order, timing of the commands, bandwidth, refresh."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hw.pim.vault.controller import VaultController
from hw.pim.vault.timing import vault_part
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.pim.vault.vault_system import VaultSystem
from hw_tests.side_by_side import SideBySide

PARTS = [
    vault_part("tiny"),
    vault_part("hmc2").with_capacity(1 << 19),
    vault_part("cashmc").with_capacity(1 << 19),
]
BRINK = replace(PARTS[0], timing=replace(PARTS[0].timing, t_refi=776))
"""With the most refreshes that the controller takes."""


def test_traffic() -> None:
    parts = {**{part.name: part for part in PARTS}, "brink": BRINK}
    run_bench(
        SideBySide({name: VaultSystem(part, name) for name, part in parts.items()}),
        top="vault_systems",
        module="hw_tests.pim.vault.vault_bench",
        parameters={
            "geometries": {name: asdict(part.geometry) for name, part in parts.items()},
            "brink_t_refi": BRINK.timing.t_refi,
        },
    )


@pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus Verilog is not installed")
def test_compiles_in_icarus(tmp_path: Path) -> None:
    source = tmp_path / "system.v"
    source.write_text(to_verilog(VaultSystem(PARTS[0], "trace"), "system"))
    command = ["iverilog", "-g2012", "-o", str(tmp_path / "system.vvp"), str(source)]
    subprocess.run(command, check=True)


def test_refused_refresh_interval() -> None:
    timing = replace(BRINK.timing, t_refi=BRINK.timing.t_refi - 1)
    message = "t_refi must be at least 776 tCK for t_rfc 100 and a queue of 16, got 775"
    with pytest.raises(ValueError, match=message):
        VaultController(geometry=BRINK.geometry, timing=timing)


def test_tags_are_optional() -> None:
    part = PARTS[0]
    controller = VaultController(geometry=part.geometry, timing=part.timing, tag_bits=0)
    assert "module vault" in to_verilog(controller, "vault")
