"""Cores in the pool: works of their own beside the host's, and what stops one of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hw.pim.config import configure
from hw.pim.pool_control import PoolControl
from hw.pim.vault.timing import vault_part
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.pim.core.training_step import config_of
from hw_tests.pim.pool_system import PoolSystem
from hw_tests.soak import for_soak
from sw_driver.cli import main


@pytest.mark.parametrize("core_clock_ratio", [1, *for_soak(2)])
def test_cores(core_clock_ratio: int) -> None:
    run_bench(
        PoolSystem(config_of(4, core_clock_ratio), vault_part("hmc2")),
        top="pim_pool_system",
        module="hw_tests.pim.core.cores_bench",
        parameters={
            "cores": 4,
            "core_clock_ratio": core_clock_ratio,
            "preset": "tiny",
            "stalls": "none",
        },
        optimization="-Og",
    )


@pytest.mark.soak
@pytest.mark.parametrize(("preset", "cores"), [("pairs", 1), ("paper", 4)])
def test_cores_are_one_module(preset: str, cores: int) -> None:
    """Whatever the pool: VexRiscv is there once."""
    config = configure(preset, cores=cores, rings=cores + 1)
    geometry = vault_part("hmc2").with_capacity(config.vault_bytes).geometry
    text = to_verilog(PoolControl(config, geometry), "pim_control")
    assert text.count("\nmodule VexRiscv (") == text.count("\nmodule pim_core (") == 1
    assert text.count("\n  pim_core ") == cores


@pytest.mark.soak
def test_the_verilog_of_a_pool_with_a_core(tmp_path: Path) -> None:
    options = ["--pim", "tiny", "--core-clock-ratio", "2", "--out", str(tmp_path), "--quiet"]
    assert main(["verilog", "pim_pool", *options]) == 2
    options += ["--cores", "1"]
    assert main(["verilog", "pim_pool", *options]) == 0
    (file,) = tmp_path.glob("*.v")
    assert file.stem == "pim_pool_tiny_cores_1_core_clock_ratio_2"
    text = file.read_text()
    modules = re.findall(r"^module (\w+)", text, re.MULTILINE)
    assert text.count("always @(posedge core_clk)") > 1
    assert f"{file.stem}__VexRiscv" in modules
    assert all(name.startswith(file.stem) for name in modules)
