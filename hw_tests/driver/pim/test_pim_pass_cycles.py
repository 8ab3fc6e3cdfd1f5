"""The formula of the pools' costs: its bounds, and the cycle model."""

from __future__ import annotations

import pytest

from hw.pim.config import PIM_PRESETS, configure
from hw_tests.driver.pim.pass_costs import LAYERS, error, mean_banks
from sw_driver.experiments.pim.networks import named_layer
from sw_driver.pim.layers import FullyConnected
from sw_driver.pim.pass_cycles import pass_cycles

CONFIG = PIM_PRESETS["paper"]

FULL_SIZE = [
    ("conv1_2", "forward", 274_184_286, 0.01),
    ("conv1_2", "backward-filter", 346_261_248, 0.05),
    ("conv3_1", "forward", 137_544_844, 0.01),
    ("conv3_1", "backward-filter", 143_349_468, 0.1),
    ("conv3_1", "backward-input", 137_876_089, 0.01),
    ("conv5_4", "backward-filter", 78_928_724, 0.1),
]
"""Of VGG-19 at a batch of 32: cycles by the cycle model (docs/pim.md), and the error allowed."""


@pytest.mark.parametrize(("layer", "pass_name", "cycles", "within"), FULL_SIZE)
def test_vgg_19_at_full_size(layer: str, pass_name: str, cycles: int, within: float) -> None:
    formula = pass_cycles(named_layer("vgg-19", layer), pass_name, CONFIG, CONFIG.banks)
    assert formula == pytest.approx(cycles, rel=within)


@pytest.mark.parametrize("banks", [32, 4])
@pytest.mark.parametrize(
    ("layer", "pass_name"),
    [("fc7", "forward"), ("fc7", "backward-filter"), ("fc7", "descent"), ("conv5_4", "forward")],
)
def test_small_passes(layer: str, pass_name: str, banks: int) -> None:
    _, off = error(LAYERS[layer].scaled(2_000_000), pass_name, banks)
    assert abs(off) < 0.15


def test_no_faster_than_lanes_or_memory() -> None:
    # 216 of the 222 pairs are lanes; a bank's memory moves 8 elements a cycle.
    conv = named_layer("vgg-19", "conv3_1")
    for pass_name in ("forward", "backward-filter", "backward-input"):
        cycles = pass_cycles(conv, pass_name, CONFIG, 32)
        assert conv.products / 216 < cycles < 1.2 * conv.products / 216
    weights = FullyConnected(samples=1, inputs=4096, outputs=4096)
    assert pass_cycles(weights, "descent", CONFIG, 32) > 3 * 4096 * 4096 / (8 * 32)


def test_half_the_banks_take_twice_as_long() -> None:
    conv = named_layer("vgg-19", "conv3_1")
    assert pass_cycles(conv, "forward", CONFIG, 16) == pytest.approx(
        2 * pass_cycles(conv, "forward", CONFIG, 32), rel=0.01
    )
    # The same banks with half the units, too.
    half = configure("paper", total=222)
    assert pass_cycles(conv, "forward", half, 32) == pytest.approx(
        2 * pass_cycles(conv, "forward", CONFIG, 32), rel=0.1
    )


def test_banks_of_a_part_have_the_mean_of_all_lanes() -> None:
    lanes = list(map(min, CONFIG.placement.multipliers, CONFIG.placement.adders))
    for banks in (32, 16, 4):
        chosen = mean_banks(CONFIG, banks)
        assert len(set(chosen)) == banks
        assert sum(lanes[bank] for bank in chosen) == 216 * banks / 32
