"""What the paper argues from: devices that outgrow PCIe (Figure 2), and their users (V-E)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import fmean

from ..plotting import draw_bars
from ..reproduction import Claim, Experiment, Row, above, given, predicted
from .designs import DC, ORACLE, catalogue
from .figures import BAND
from .runs import Runs
from .studies import CNNS

__all__ = ["figure2"]

_V100_TFLOP_PER_S = 125
_DEVICES = {
    "K40 (Kepler, 2013)": (5.04, 288),
    "M40 (Maxwell, 2015)": (6.8, 288),
    "P100 (Pascal, 2016)": (10.6, 732),
    "V100 (Volta, 2017)": (_V100_TFLOP_PER_S, 900),
    "TPUv2 (2017)": (180, 2400),
}
"""TFLOP/s and GB/s."""
_K40_BASE = (4.29, 288)
_SPEED, _OVERHEAD = "speed", "overhead, %"


def _of(base: Runs, tflop_per_s: float, gb_per_s: float) -> Runs:
    node = catalogue(base.case.changes).device("node").tflop_per_s.value
    changes = {
        "node.tflop_per_s": str(node * tflop_per_s / _V100_TFLOP_PER_S),
        "node.gb_per_s": str(gb_per_s),
    }
    return replace(base.of(changes, devices=1), networks=CNNS, modes=("data",))


def _speeds(runs: Runs, first: Runs) -> list[float]:
    """Without overlaying."""
    return [
        first.result(ORACLE, *each).total_ns / runs.result(ORACLE, *each).total_ns
        for each in runs.each()
    ]


def figure2(base: Runs) -> Experiment:
    """Five generations of a device, and what overlaying over PCIe adds on each."""
    devices = {name: _of(base, *peaks) for name, peaks in _DEVICES.items()}
    first, *_, last = devices.values()
    rows: list[Row] = []
    means: list[float] = []
    for name, runs in devices.items():
        speeds = _speeds(runs, first)
        overheads = [100 / share - 100 for share in runs.shares(DC, ORACLE)]
        means.append(fmean(overheads))
        tflop_per_s, gb_per_s = _DEVICES[name]
        row: dict[str, Claim | str] = {
            "device": name,
            "TFLOP/s": given(tflop_per_s),
            "GB/s": given(gb_per_s, digits=0),
        }
        for network, speed, overhead in zip(CNNS, speeds, overheads, strict=True):
            row[f"{network}, {_SPEED}"] = predicted(speed, digits=1)
            row[f"{network}, {_OVERHEAD}"] = predicted(overhead, digits=0)
        row["mean overhead, %"] = predicted(means[-1], digits=1)
        rows.append(row)
    fastest, by_base = _speeds(last, first), _speeds(last, _of(base, *_K40_BASE))
    claim = partial(predicted, section="Figure 2", unit="x", band=BAND, digits=1)
    grows = [after - before for before, after in pairwise(means)]
    return Experiment(
        title="Figure 2: five generations of a device",
        rows=rows,
        quoted={
            "the fifth beside the first, least": claim(min(fastest), 20),
            "the fifth beside the first, most": claim(max(fastest), 34),
            **above("Figure 2", 0, {"more overhead than the generation before": grows}),
            "PCIe of the fourth beside the first": given(1, 1, section="I", unit="x"),
            "InfiniBand, HDR beside FDR": given(200 / 56, 3.5, section="I", unit="x", band=0.05),
            "what users can train": predicted(
                None,
                section="V-E",
                excluded="V-E has no figure, and none follows from it: it names kinds of networks, "
                "for video, that do not fit today, but no sizes, batches or bytes of theirs.",
            ),
        },
        notes=[
            "One device: speed without overlaying, beside the first; and how much longer a step of "
            "DC-DLA takes. The paper does not name the devices: these five are *assumed*. Their "
            "peaks are as NVIDIA's *Tesla V100 GPU Architecture*, Table 1, has them at boost "
            "clocks, of the V100 those of its tensor cores, memory as in NVIDIA's data sheets; "
            "TPUv2 is as Google has it, of four chips. Each does as much of its peak as the "
            f"device-node of the V100's {_V100_TFLOP_PER_S}, and has the device-node's memory and "
            f"PCIe. By the K40's base clock, {_K40_BASE[0]} TFLOP/s, the fifth would be "
            f"{min(by_base):.1f} to {max(by_base):.1f} times as fast. PCIe is 3.0, of 16 lanes, "
            "from K40 to V100; InfiniBand has 56 and 200 Gb/s."
        ],
        draw=partial(
            draw_bars,
            rows,
            {
                "speed beside the first": [f"{name}, {_SPEED}" for name in CNNS],
                "overhead of overlaying, %": [f"{name}, {_OVERHEAD}" for name in CNNS],
            },
        ),
    )
