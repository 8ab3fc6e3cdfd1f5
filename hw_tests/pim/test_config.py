"""What the pools' configuration derives and refuses."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from hw.pim.config import PIM_PRESETS, PimConfig, configure
from hw.pim.placement import ThermalWeights


def test_defaults_are_the_papers_machine() -> None:
    config = PimConfig()
    assert config == PIM_PRESETS["paper"]
    assert (config.banks, config.units, config.clock_mhz) == (32, 444, 312.5)
    assert (config.vault_gb_per_s, config.stack_bytes) == (10.0, 8 << 30)
    assert config.placement.units[:2] == (16, 14)


def test_444_units_or_444_of_each() -> None:
    needed = 121 + 120  # of an 11 x 11 filter
    assert round(100 * needed / PIM_PRESETS["paper"].units, 1) == 54.3
    assert round(100 * needed / PIM_PRESETS["pairs"].units, 1) == 27.1
    assert sum(PIM_PRESETS["pairs"].placement.adders) == 444


@pytest.mark.parametrize("preset", PIM_PRESETS)
def test_presets_give_every_bank_both_kinds(preset: str) -> None:
    placement = PIM_PRESETS[preset].placement
    assert len(placement.units) == PIM_PRESETS[preset].banks
    assert min(*placement.multipliers, *placement.adders) >= 1
    assert sum(placement.multipliers) == sum(placement.adders)


def test_configure() -> None:
    assert configure("tiny", works=8).works == 8
    config = configure(edge=13, inside=12, total=416)
    assert config.weights == ThermalWeights(corner=16, edge=13, inside=12)
    assert config.placement.units[:2] == (16, 13)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({"rows": rows}, "rows must be an integer from 1 to 8") for rows in (0, 9, 2.0, True)),
        ({"columns": 0}, "columns must be an integer from 1 to 8, got 0"),
        ({"rows": 5}, "rows times columns must be 32 banks or fewer, got 5 x 8"),
        *(({"total": total}, "total must be an integer from 1 to 1024") for total in (0, 1025)),
        ({"total": 40}, "total must leave each of 4 x 8 banks"),
        ({"clocking": "latched"}, "clocking must be one of .*, got 'latched'"),
        ({"weights": (16, 14, 13)}, "weights must be ThermalWeights, got"),
        *(({"clock_mhz": f}, "clock_mhz must be from above 0") for f in (0, -1.0, 1e9, "fast")),
        *(({"bank_bytes": size}, "bank_bytes must be a power of two") for size in (512, 3000)),
        *(({"buffer_bytes": size}, "buffer_bytes must be a power of two") for size in (256, 777)),
        *(({"rings": rings}, "rings must be an integer from 1 to 5") for rings in (0, 6)),
        *(({"cores": cores}, "cores must be an integer from 0 to 4") for cores in (-1, 5, True)),
        ({"cores": 2}, "rings must be more than cores, 2, got 2: the host has one"),
        *(
            ({"core_clock_ratio": n}, "core_clock_ratio must be a power of two from 1 to 4")
            for n in (0, 3, 8, 0.5)
        ),
        ({"scratchpad_bytes": 4096}, "scratchpad_bytes must be a power of two from 8192"),
        *(({"works": works}, "works must be a power of two from 2 to 32") for works in (1, 3, 64)),
    ],
    ids=str,
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PimConfig(**changes)


def test_refuses_unknown_names() -> None:
    with pytest.raises(ValueError, match="no configuration 'papers'; known: paper, pairs, tiny"):
        configure("papers")
    with pytest.raises(ValueError, match="no configuration option 'weights'; known: rows, "):
        configure(weights=ThermalWeights())


def test_is_frozen() -> None:
    config: Any = PimConfig()
    with pytest.raises(FrozenInstanceError):
        config.rows = 2
