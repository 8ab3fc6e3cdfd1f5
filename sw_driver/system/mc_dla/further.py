"""What is not in the paper: how its rates were fitted, other choices, today's devices, and more of
them than in a box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log, sqrt

from sw_driver.machine.mc_dla import MC_DLA_RTL

from ..reproduction import Changes, Claim, Experiment, Row, calibrated, given, predicted
from .designs import DC, ORACLE, SCALE_OUT, B, S, catalogue
from .runs import FITTED, MEANS, Runs, both_ways
from .step import MODES, Choices

__all__ = ["calibration", "choices", "scaleout", "today"]

_PEAK_TFLOP_PER_S = 256.0
_LINE_GB_PER_S = 15.75
_THEIRS = {name: given(mean) for name, mean in MEANS.items()}
_BESIDE = "Claims are judged in Figure 13."


def _arithmetic(tflop_per_s: float) -> Changes:
    return {"node.tflop_per_s": str(tflop_per_s)}


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls is 0, to a thousandth; the end that is next to it if nowhere."""
    while high / low > 1.001:
        middle = sqrt(low * high)
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return sqrt(low * high)


def _fit(runs: Runs, modes: tuple[str, ...]) -> tuple[float, float]:
    """The device-node's TFLOP/s from (S)'s largest loss, and then PCIe's GB/s from (B)'s means."""

    def loss(tflop_per_s: float) -> float:
        return min(runs.of(_arithmetic(tflop_per_s)).shares(S, B)) - MEANS["(S) of (B), least"]

    tflop_per_s = _root(loss, _PEAK_TFLOP_PER_S / 16, _PEAK_TFLOP_PER_S)
    node = runs.of(_arithmetic(tflop_per_s))

    def excess(gb_per_s: float) -> float:
        tried = node.of(both_ways("pcie", gb_per_s))
        return sum(log(tried.speedup(B, mode) / MEANS[f"(B), {mode}-parallel"]) for mode in modes)

    return tflop_per_s, _root(excess, 8.0, 24.0)


def calibration(base: Runs) -> Experiment:
    """The fit of the two rates again, and what other means would have given."""
    rows: list[Row] = []
    for modes in (MODES, ("data",), ("model",)):
        tflop_per_s, gb_per_s = _fit(base, modes)
        fitted = base.of(_arithmetic(tflop_per_s)).of(both_ways("pcie", gb_per_s))
        rows.append(
            {
                "PCIe fitted to": " and ".join(f"{mode}-parallel" for mode in modes),
                "node, TFLOP/s": calibrated(tflop_per_s, digits=1),
                "of 256, %": calibrated(100 * tflop_per_s / _PEAK_TFLOP_PER_S, digits=1),
                "PCIe, GB/s": calibrated(gb_per_s, digits=1),
                "of its lanes' 15.75, %": calibrated(100 * gb_per_s / _LINE_GB_PER_S, digits=0),
                **{
                    f"(B), {mode}-parallel": (calibrated if mode in modes else predicted)(
                        fitted.speedup(B, mode)
                    )
                    for mode in MODES
                },
            }
        )
    theirs = {name: mean for name, mean in _THEIRS.items() if name in rows[0]}
    rows.append({"PCIe fitted to": "the paper's", **theirs})
    return Experiment(
        title="The two rates",
        rows=rows,
        notes=[
            "The device-node's rate is from (S)'s largest loss alone, on which PCIe has no part. "
            "All other experiments have the first row's rates, rounded. " + _BESIDE
        ],
    )


_CHOICES: dict[str, tuple[Changes, Choices]] = {
    "as above": ({}, Choices()),
    "inputs are not gathered again": ({}, Choices(gathers_again=False)),
    "weights' gradients step by step": ({}, Choices(weights_at_once=False)),
    "computing again costs nothing": ({}, Choices(computes_again=False)),
    "the device-node at its peak": (_arithmetic(_PEAK_TFLOP_PER_S), Choices()),
    "PCIe at 12 GB/s, as copies reach": (both_ways("pcie", 12), Choices()),
    "PCIe of its own for each device": (both_ways("pcie", 2 * 14.2), Choices()),
    "a hop takes 1 us": ({"link.latency_ns": "1000"}, Choices()),
}


def choices(base: Runs) -> Experiment:
    """What the means are if what the paper leaves open was otherwise, with the same rates."""
    rows: list[Row] = []
    for name, (changes, chosen) in _CHOICES.items():
        fitted = () if rows else FITTED
        means = base.of(changes, choices=chosen).means()
        cells = {x: (calibrated if x in fitted else predicted)(ours) for x, ours in means.items()}
        rows.append({"choice": name, **cells})
    rows.append({"choice": "the paper's", **_THEIRS})
    return Experiment(
        title="What the choices do",
        rows=rows,
        notes=[f"The rates are those fitted with the first row's choices. {_BESIDE}"],
    )


_TODAY = {
    "mc_dla": "the paper's",
    MC_DLA_RTL: "the paper's, rates of the RTL",
    "a100": "A100-class",
    "h100": "H100-class",
}


def today(base: Runs) -> Experiment:
    """The designs with devices of today."""
    rows: list[Row] = []
    for name, text in _TODAY.items():
        parts, runs = catalogue(base.case.changes, name), base.of(parts=name)
        row: dict[str, Claim | str] = {"devices": text}
        for mode in MODES:
            for beside, design, over in (
                ("DC-DLA of the oracle", DC, ORACLE),
                ("(B) of the oracle", B, ORACLE),
                ("(B) beside DC-DLA", B, DC),
            ):
                row[f"{beside}, {mode}-parallel"] = predicted(runs.speedup(design, mode, over))
        for text, link, count in (("links", "link", 6), ("memory-node", "dimms", 1)):
            rate = parts.link(link).write_gb_per_s
            row[f"{text}, GB/s"] = Claim(ours=count * rate.value, mark=rate.mark, digits=0)
        rows.append(row)
    return Experiment(
        title="Devices of today",
        rows=rows,
        notes=[
            "Eight devices, each with six links as fast as two (A100) or three (H100) of theirs, "
            "and PCIe 4 or 5, two to an uplink; sources are in `sw_driver/machine/mc_dla.py`. FP32 "
            "in memory, TF32 arithmetic at half of its peak. Rates of the RTL are by its [cycle "
            "model](../methods.md#the-cycles-of-a-memory-nodes-group), with packets of 4 KB; links "
            "of 150 GB/s leave its memory-node idle for a third of the time. With ten DIMMs of "
            "today it, no longer the links, is what moving waits for."
        ],
    )


_PER_DEVICE = 64


def scaleout(base: Runs) -> Experiment:
    """Figure 15: devices and memory-nodes at a plane of switches."""
    parts = catalogue(base.case.changes)
    # Two links and a switch from node to node.
    switched = {"link.latency_ns": str(3 * int(parts.link("link").latency_ns.value))}
    runs = replace(base.of(switched, devices=8, batch=8 * _PER_DEVICE), modes=("data",))
    dc, mc, oracle = SCALE_OUT
    rows: list[Row] = []
    for devices in (8, 64, 256, 1024):
        more = runs.of(devices=devices, batch=devices * _PER_DEVICE)
        tb = devices * parts.memory("memory_node").capacity_bytes.value / 1e12
        rows.append(
            {
                "devices": f"{devices:,}",
                **{
                    f"{design}, % of 8": predicted(100 * more.faster(runs, design), digits=1)
                    for design in SCALE_OUT
                },
                "MC-DLA beside DC-DLA": predicted(more.speedup(mc, over=dc)),
                "MC-DLA of the oracle": predicted(more.speedup(mc, over=oracle)),
                "memory-nodes, TB": given(tb, digits=1),
            }
        )
    return Experiment(
        title="Figure 15: a plane of switches",
        rows=rows,
        notes=[
            f"Data-parallel, {_PER_DEVICE} samples a device; speed of each, of that with 8. A node "
            "has three links to the plane, over which all devices form rings, and each moves to a "
            "memory-node; a hop is two links and a switch, 300 ns. In a ring of 1,024 a collective "
            "makes 2,046 hops, of messages of 4 KB: that is what slows small networks."
        ],
    )
