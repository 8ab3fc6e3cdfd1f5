"""Configurations of the module."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from hw.axdimm.config import MODULE_PRESETS, ModuleConfig, configure


def test_default_is_the_papers_module() -> None:
    config = configure()
    assert config == ModuleConfig() == MODULE_PRESETS["axdimm"]
    assert config.channels * config.capacity_bytes == 32 << 30
    assert config.fabric_mhz == 200
    assert (config.lanes, config.block_bytes) == (16, 16384)
    assert config.kernel.memory_bytes == config.capacity_bytes - 8192
    assert (1 << config.address_width) == config.capacity_bytes


def test_options_change_the_preset() -> None:
    config = configure("tiny", lanes=4, block_bytes=2048, capacity_bytes=2 << 20)
    assert (config.kernel.lanes, config.kernel.block_bytes) == (4, 2048)
    assert config.capacity_bytes == 2 << 20
    assert configure(part="ddr4_2400_8gbit_x8").part.name == "ddr4_2400_8gbit_x8"
    flat = configure("tiny", run_length=4, refresh=False, t_rfc=100, rows=8)
    assert (flat.controller.run_length, flat.controller.refresh) == (4, False)
    assert (flat.part.timing.t_rfc, flat.part.geometry.rows) == (100, 8)
    assert flat.refresh_efficiency == 1.0


def test_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        configure().lanes = 4  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "nonsense"}, "no configuration 'nonsense'; known: axdimm"),
        ({"nonsense": 1}, "no configuration option 'nonsense'; known: channels"),
        ({"part": "nonsense"}, "no DRAM part 'nonsense'"),
        ({"lanes": 3}, "lanes must be one of .* got 3"),
        ({"block_bytes": 1000}, "block_bytes must be a power of two .* got 1000"),
        ({"clocking": "latched"}, "clocking must be one of .*, got 'latched'"),
        ({"channels": 5}, "channels must be 1, 2 or 4, .* got 5"),
        ({"channels": 3}, "channels must be 1, 2 or 4, .* got 3"),
        (
            {"t_rfc": 441, "t_refi": 442},
            r"t_refi must be at least 531 .* t_rfc may be 352\), got 442",
        ),
        ({"read_latency_fabric_cycles": 4}, "from 5 to 512, got 4"),
        ({"memory": "hbm"}, "memory must be one of ddr4, axi4, got 'hbm'"),
        ({"host": "pcie"}, "host must be one of link, axi4, got 'pcie'"),
        ({"host": "axi4", "read_latency_fabric_cycles": 60}, "means nothing with .* got 60"),
        ({"memory": "axi4", "queue_depth": 32}, "queue_depth .* memory is 'axi4'"),
        ({"capacity_bytes": 3 << 20}, "got 3145728"),
        ({"capacity_bytes": 1024}, "got 1024"),
        ({"refresh": 1}, "refresh must be True or False, got 1"),
        ({"queue_depth": 9}, "queue_depth must be a power of two .* got 9"),
        ({"reset_cycles": 60_000}, "reset_cycles must be an integer from 1 to 256, got 60000"),
        ({"t_faw": 400_000}, "t_faw must be at most 4096 tCK, got 400000"),
        ({"t_ccd_l": 3}, "t_ccd_l must be at least 4"),
        ({"bank_groups": 3}, "bank_groups must be a power of two .* got 3"),
    ],
)
def test_refuses(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure(**options)


def test_derived_values_cannot_be_given() -> None:
    with pytest.raises((TypeError, ValueError)):
        replace(configure(), kernel=configure("tiny").kernel)
