"""The paper's figures, Table IV, and its claims on other devices and hosts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, harmonic_mean

from sw_driver.device.timeline import Timeline
from sw_driver.workload.layers import load_layers

from ..plotting import draw_bars, draw_lines
from ..reproduction import Changes, Claim, Experiment, Row, above, calibrated, given, predicted
from .designs import DC, DESIGNS, HC, ORACLE, B, L, S, catalogue
from .runs import BATCH, McDlaRuns
from .step import MODES, step

__all__ = ["figure2", "figure11", "figure13", "figure14", "scaling", "sensitivity", "table4"]

_BAND = 0.10
"""Band of the paper's means."""
_CNNS = ("alexnet", "googlenet", "vgg-e", "resnet-34")
_V100_TFLOP_PER_S = 125
_DEVICES = {
    "K40 (Kepler, 2013)": (5.04, 288),
    "M40 (Maxwell, 2015)": (6.8, 288),
    "P100 (Pascal, 2016)": (10.6, 732),
    "V100 (Volta, 2017)": (_V100_TFLOP_PER_S, 900),
    "TPUv2 (2017)": (180, 2400),
}
"""Rates of devices, in TFLOP/s and GB/s."""
_SPEED, _OVERHEAD = "speed", "overhead, %"


def figure2(base: McDlaRuns) -> Experiment:
    """Compare five generations of a device, and the overhead of overlaying over PCIe on each."""
    node = catalogue(base.changes).device("node").tflop_per_s.value
    rows: list[Row] = []
    means: list[float] = []
    first = speeds = None
    for name, (tflop_per_s, gb_per_s) in _DEVICES.items():
        changes = {
            "node.tflop_per_s": str(node * tflop_per_s / _V100_TFLOP_PER_S),
            "node.gb_per_s": str(gb_per_s),
        }
        runs = base.with_changes(changes, devices=1, networks=_CNNS, modes=("data",))
        first = first or runs
        speeds = [
            first.result(ORACLE, *step).step_ns / runs.result(ORACLE, *step).step_ns
            for step in runs.steps()
        ]
        overheads = [100 / share - 100 for share in runs.shares(DC, ORACLE)]
        means.append(fmean(overheads))
        row: dict[str, Claim | str] = {
            "device": name,
            "TFLOP/s": given(tflop_per_s),
            "GB/s": given(gb_per_s, digits=0),
        }
        for network, speed, overhead in zip(_CNNS, speeds, overheads, strict=True):
            row[f"{network}, {_SPEED}"] = predicted(speed, digits=1)
            row[f"{network}, {_OVERHEAD}"] = predicted(overhead, digits=0)
        rows.append(row)
    assert speeds is not None
    claim = partial(predicted, section="Figure 2", unit="x", band=_BAND, digits=1)
    grows = [after - before for before, after in pairwise(means)]
    return Experiment(
        title="Figure 2: five generations of a device",
        rows=rows,
        quoted={
            "speed of the fifth device over the first, least": claim(min(speeds), 20),
            "speed of the fifth device over the first, most": claim(max(speeds), 34),
            **above("Figure 2", 0, {"overhead grows from one generation to the next": grows}),
        },
        notes=[
            "Every run has one device. Speed is without overlaying, relative to the first device. "
            "Overhead is the extra time of a step of DC-DLA. The paper does not name the devices: "
            "these five are *assumed*, with rates from NVIDIA's and Google's data sheets. Each "
            "reaches the device-node's share of its peak, and has the device-node's PCIe."
        ],
        draw=partial(
            draw_bars,
            rows,
            {
                "speed relative to the first": [f"{name}, {_SPEED}" for name in _CNNS],
                "overhead of overlaying, %": [f"{name}, {_OVERHEAD}" for name in _CNNS],
            },
        ),
    )


_SHOWN = "resnet-34"
_OVERLAY = ("out", "back")
"""Queues of moves to the stores, and back."""


def figure11(base: McDlaRuns) -> Experiment:
    """Compare computation, synchronization and overlaying, each by itself."""
    rows: list[Row] = []
    for network, mode in base.steps():
        results = {name: base.result(name, network, mode) for name in (DC, HC, S, L, B)}
        took = {
            "compute, ms": results[DC].busy("compute"),
            **{f"sync. {name}, ms": results[name].busy("sync") for name in (DC, HC, B)},
            **{f"overlay {name}, ms": made.busy(*_OVERLAY) for name, made in results.items()},
        }
        cells = {name: predicted(ns / 1e6) for name, ns in took.items()}
        rows.append({"network": network, "split": mode, **cells})

    def times(*queues: str, design: str = HC, over: str = DC) -> float:
        """Return the mean ratio of two designs' times for a part of a step."""
        return fmean(
            base.result(design, *step).busy(*queues) / base.result(over, *step).busy(*queues)
            for step in base.steps()
        )

    claim = partial(predicted, section="V-A", unit="x", band=_BAND)
    return Experiment(
        title="Figure 11: parts of a step",
        rows=rows,
        quoted={
            "HC-DLA: reduction of overlaying time": claim(1 - times(*_OVERLAY), 0.88),
            "HC-DLA: synchronization time over DC-DLA's": claim(times("sync"), 1 + 0.90),
            "MC-DLA(L): overlaying time over (B)'s": claim(
                times(*_OVERLAY, design=L, over=B), 2, section="Figure 10"
            ),
        },
        notes=[
            "The table gives the busy time of each part of a step. Parts overlap, and take longer "
            "where they share links. `--out DIR` also writes timelines of "
            f"{_SHOWN}, data-parallel."
        ],
        draw=partial(_draw_parts, base, rows),
    )


def _draw_parts(base: McDlaRuns, rows: list[Row], path: Path) -> list[Path]:
    panels = {
        f"{name}: % of its parts": ["compute, ms", f"sync. {name}, ms", f"overlay {name}, ms"]
        for name in (DC, B)
    }
    files = draw_bars(rows, panels, path, stacked=True, shares=True)
    for design in (DC, B):
        timeline = Timeline(backend="model", fabric_mhz=1000)
        parts, layers = catalogue(base.changes), load_layers(_SHOWN)
        step(DESIGNS[design], parts, layers, "data", BATCH, timeline=timeline)
        files.append(path.with_suffix(f".{design[:6].lower()}.json.gz"))
        timeline.write(files[-1])
    return files


def figure13(base: McDlaRuns) -> Experiment:
    """Compare the speed of all designs with DC-DLA's."""
    rows: list[Row] = []
    for network, mode in base.steps():
        ns = {name: base.result(name, network, mode).step_ns for name in DESIGNS}
        speeds = {design: predicted(ns[DC] / ns[design]) for design in DESIGNS}
        rows.append({"": f"{network}, {mode}-parallel", **speeds})
    claim = partial(predicted, section="V-B", unit="x", band=_BAND)
    fitted = partial(calibrated, section="V-B", unit="x", band=_BAND)
    means = {mode: {name: base.speedup(name, mode) for name in DESIGNS} for mode in (*MODES, "")}
    for mode, of_b in (("data", 3.5), ("model", 2.1)):
        cells = {name: predicted(mean) for name, mean in means[mode].items()}
        cells[B] = fitted(means[mode][B], of_b)
        if mode == "model":
            cells[HC] = claim(means[mode][HC], 1.38)
        rows.append({"": f"mean, {mode}-parallel", **cells})
    rows.append({"": "mean of both", **{name: predicted(x) for name, x in means[""].items()}})
    in_order = list(means[""].values()) == sorted(means[""].values())
    return Experiment(
        title="Figure 13: speed relative to DC-DLA",
        rows=rows,
        quoted={
            "speed of (B), arithmetic mean of the two means": fitted(
                fmean(means[mode][B] for mode in MODES), 2.8
            ),
            "speed of (B) over the oracle": claim(base.speedup(B, over=ORACLE), 0.95),
            "speed of (L) over (B)": claim(base.speedup(L, over=B), 0.96),
            "speed of (S) over (B)": claim(base.speedup(S, over=B), 1 - 0.14),
            "speed of (S) over (B), least": fitted(min(base.shares(S, B)), 1 - 0.24),
            "speed of (B) over the oracle, least": claim(min(base.shares(B, ORACLE)), 0.84),
            "speed of (B) over the oracle, most": claim(max(base.shares(B, ORACLE)), 0.99),
            "designs in the paper's order, by the mean of both": claim(
                float(in_order), 1, unit="", band=0, digits=0
            ),
        },
        notes=[
            "Means are harmonic, as the paper states. Its 2.8, however, is the arithmetic mean of "
            "3.5 and 2.1; their harmonic mean is 2.63."
        ],
        draw=partial(draw_bars, rows, {"speed relative to DC-DLA": list(DESIGNS)}),
    )


def figure14(base: McDlaRuns) -> Experiment:
    """Compare (B) with DC-DLA at several batches."""
    rows: list[Row] = []
    every: list[float] = []
    for batch in (128, 256, 512, 1024):
        runs, cell = base.with_changes(batch=batch), calibrated if batch == BATCH else predicted
        speeds = {f"{mode}-parallel": cell(runs.speedup(B, mode)) for mode in MODES}
        rows.append({"batch": str(batch), **speeds})
        every += runs.shares(B, DC)
    mean = predicted(harmonic_mean(every), 2.17, section="V-B", unit="x", band=_BAND)
    return Experiment(
        title="Figure 14: speed of MC-DLA(B) against the batch",
        rows=rows,
        quoted={"mean of all batches": mean},
        notes=["The paper shows its batches only in a picture. These are ours."],
        draw=partial(
            draw_lines,
            rows,
            {f"{mode}-parallel": f"{mode}-parallel" for mode in MODES},
            "speed relative to DC-DLA",
        ),
    )


def table4(base: McDlaRuns) -> Experiment:
    """Report the power of memory-nodes, and the speed for each watt."""
    speed = fmean(base.speedup(B, mode) for mode in MODES)
    rows: list[Row] = []
    for name, watts, more, speed_per_watt in (
        ("8 GB RDIMM", 2.9, 7, 2.6),
        ("128 GB LRDIMM", 12.7, 31, 2.1),
    ):
        share = 8 * 10 * watts / 3200
        rows.append(
            {
                "DIMMs": name,
                "W per DIMM": given(watts, digits=1),
                "eight nodes, % of 3200 W": given(
                    100 * share, more, section="V-C", unit="%", band=0.05, digits=1
                ),
                "speed per watt": calibrated(
                    speed / (1 + share), speed_per_watt, section="V-C", unit="x", band=_BAND
                ),
            }
        )
    return Experiment(
        title="Table IV: power",
        rows=rows,
        notes=[
            "Eight memory-nodes of ten DIMMs are added to a system of 3200 W. Power is *given*, "
            "from data sheets; speed is that of Figure 13."
        ],
    )


def _both_ways(link: str, gb_per_s: float) -> Changes:
    """Return the changes of parts that give a link this rate in both directions."""
    return {f"{link}.{way}_gb_per_s": str(gb_per_s) for way in ("read", "write")}


def sensitivity(base: McDlaRuns) -> Experiment:
    """Compare other hosts and devices."""
    parts = catalogue(base.changes)
    tflop_per_s = parts.device("node").tflop_per_s.value
    host_gb_per_s = parts.link("pcie").read_gb_per_s.value

    fast_host = base.with_changes(_both_ways("pcie", 2 * host_gb_per_s))
    tpu = base.with_changes(
        {"node.tflop_per_s": str(tflop_per_s * 180 / 125), "node.gb_per_s": "2400"}
    )
    # 16 devices share as many links to the host as 8 had.
    dgx_2 = base.with_changes(_both_ways("pcie", host_gb_per_s / 2), devices=16)
    claim = partial(predicted, section="V-B", unit="x", band=_BAND)
    speeds: Mapping[str, Claim] = {
        "as in Figure 13": predicted(base.speedup(B)),
        "PCIe 4": claim(fast_host.speedup(B), 2.1),
        "TPUv2-class devices": claim(tpu.speedup(B), 3.2),
        "DGX-2-class": claim(dgx_2.speedup(B), 2.9),
    }
    return Experiment(
        title="Other hosts and devices (V-B)",
        rows=[
            {"system": name, "speed of (B) over DC-DLA": speed} for name, speed in speeds.items()
        ],
        quoted={"DC-DLA: speed with PCIe 4 over PCIe 3": claim(fast_host.faster(base, DC), 1.38)},
        notes=[
            "Speeds are harmonic means over data- and model-parallel training. TPUv2 has 180 "
            "TFLOP/s instead of 125, and 2,400 GB/s. DGX-2 has 16 device-nodes, four to a PCIe "
            "uplink.",
        ],
        why_missed="DC-DLA gains more from PCIe 4 than in the paper: moves over PCIe are the "
        "longest part of all 16 steps here, and of 14 there. If a step took as long as its longest "
        "part, the paper's own means would let DC-DLA gain 1.45 or more.",
    )


def scaling(base: McDlaRuns) -> Experiment:
    """Compare more devices for the same batch: CNNs, data-parallel."""
    runs = base.with_changes(networks=_CNNS, modes=("data",))
    rows: list[Row] = []
    for devices in (4, 8):
        one, more = runs.with_changes(devices=1), runs.with_changes(devices=devices)
        dc, b, oracle = (more.faster(one, name) for name in (DC, B, ORACLE))
        of_oracle = predicted(oracle, devices, section="V-D", unit="x", band=_BAND)
        cells = {DC: predicted(dc), B: predicted(b), ORACLE: of_oracle}
        rows.append({"devices": str(devices), **cells})
    return Experiment(
        title="More devices (V-D)",
        rows=rows,
        notes=[
            "Speed is relative to one device, for AlexNet, GoogLeNet, VGG-E and ResNet with a "
            "batch of 512. The oracle stands for training without overlaying."
        ],
    )
