"""``python -m hw_tests.driver.pim.pass_costs [PRODUCTS ...]``: how far the formula of
the pools' costs is from their cycle model.

Passes of layers, each scaled to so many products at most (by default 2,000,000 and 8,000,000), on
all banks and on parts of them: the model's cycles, and the formula's error. Then all errors of a
size on so many banks, in the mean, and the worst. The formula was fitted to AlexNet's layers and to
others that are not here.
"""

from __future__ import annotations

import sys
from itertools import product
from statistics import fmean

from hw.pim.config import PIM_PRESETS, PimConfig
from sw_driver.experiments.pim.measure import place_jobs
from sw_driver.experiments.pim.networks import named_layer
from sw_driver.pim.backends.cycles import CyclesPim
from sw_driver.pim.device import Pim
from sw_driver.pim.layers import Convolution, FullyConnected, Layer
from sw_driver.pim.pass_cycles import pass_cycles

CONFIG = PIM_PRESETS["paper"]
BANKS = (32, 16, 4)


def _square(size: int, channels: int, filters: int, k: int, stride: int = 1) -> Convolution:
    return Convolution(
        images=64,
        channels=channels,
        height=size,
        width=size,
        filters=filters,
        filter_height=k,
        filter_width=k,
        stride=stride,
        padding=k // 2,
    )


LAYERS: dict[str, Layer] = {
    **{name: named_layer("vgg-19", name) for name in ("conv1_2", "conv3_1", "conv5_4", "fc7")},
    "ResNet's 1x1": _square(56, 256, 64, 1),
    "ResNet's 3x3 by 2": _square(56, 128, 128, 3, 2),
    "DCGAN's 5x5 by 2": _square(14, 138, 128, 5, 2),
    "LSTM's gates": FullyConnected(samples=20, inputs=3000, outputs=6000),
}
PASSES = [
    *product(("conv1_2", "conv3_1", "conv5_4"), ("forward", "backward-filter", "backward-input")),
    ("conv1_2", "backward-bias"),
    *product(("fc7",), ("forward", "backward-filter", "backward-input", "descent")),
    *product(("ResNet's 1x1",), ("forward", "backward-filter")),
    ("ResNet's 3x3 by 2", "forward"),
    *product(("DCGAN's 5x5 by 2",), ("backward-filter", "backward-input")),
    ("LSTM's gates", "forward"),
]


def mean_banks(config: PimConfig, banks: int) -> list[int]:
    """So many banks, with as many lanes as banks have in the mean, as near as it can be."""
    lanes = list(map(min, config.placement.multipliers, config.placement.adders))
    wanted, chosen = sum(lanes) * banks / config.banks, []
    for left in range(banks, 0, -1):
        free = [bank for bank in range(config.banks) if bank not in chosen]
        chosen.append(min(free, key=lambda bank: abs(lanes[bank] - wanted / left)))
        wanted -= lanes[chosen[-1]]
    return chosen


def model_cycles(layer: Layer, pass_name: str, banks: int) -> int:
    """Cycles of the pass alone by the cycle model, from the first work's start to the last's end.
    On a part of the banks works that run side by side have so many fewer units."""
    stack, (job,) = place_jobs([("", layer, layer)], pass_name, CONFIG)
    works = job.program.works
    with Pim(CyclesPim(stack, computes=False)) as device:
        chosen = mean_banks(CONFIG, banks) if banks < CONFIG.banks else None
        side_by_side = works[0].units < CONFIG.units
        ids: list[int] = []
        begin = 0
        for work in works:
            if len(ids) >= stack.works:
                device.wait(ids[-stack.works])
            if chosen is None or side_by_side:
                units = max(1, work.units * banks // CONFIG.banks)
                ids.append(device.pim_fix(None, work, work.result, units))
            else:
                ids.append(device.pim_fix(chosen, work, work.result, banks))
            if len(ids) == 1:
                begin = device.transport.cycles()
        for work_id in ids[-stack.works :]:
            device.wait(work_id)
        if len(ids) == 1:
            return device.counters(ids[0]).cycles or 0
        return device.transport.cycles() - begin


def error(layer: Layer, pass_name: str, banks: int) -> tuple[int, float]:
    """The model's cycles, and how much more the formula says, as a share."""
    cycles = model_cycles(layer, pass_name, banks)
    return cycles, pass_cycles(layer, pass_name, CONFIG, banks) / cycles - 1


def main(sizes: list[int]) -> None:
    """Compares and prints."""
    for most, banks in product(sizes, BANKS):
        errors = []
        for name, pass_name in PASSES:
            layer = LAYERS[name].scaled(most)
            cycles, off = error(layer, pass_name, banks)
            errors.append(abs(off))
            print(f"{banks:2} banks {name:18} {pass_name:16} {cycles:9,} {off:+7.1%}", flush=True)
        print(
            f"{most:,} products, {banks} banks, {len(errors)} passes: {fmean(errors):.1%}, ", end=""
        )
        print(f"worst {max(errors):.1%}", flush=True)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [2_000_000, 8_000_000])
