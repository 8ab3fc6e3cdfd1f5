"""What is not in the paper: how its rates were fitted, other choices, today's devices, and more of
them than in a box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log, sqrt

from sw_driver.machine.mc_dla import MC_DLA_RTL

from ..reproduction import Cell, Changes, Experiment, Progress, Row, calibrated, given, predicted
from .designs import DC, ORACLE, SCALE_OUT, B, S, catalogue
from .paper import B_MEANS, CLAIMS, S_LEAST
from .runs import Runs
from .step import MODES, Choices

__all__ = ["calibration", "choices", "scaleout", "today"]

_PEAK_TFLOP_PER_S = 256.0
_LINE_GB_PER_S = 15.75


def _arithmetic(tflop_per_s: float) -> Changes:
    return {"node.tflop_per_s": str(tflop_per_s)}


def _host(gb_per_s: float) -> Changes:
    return {f"pcie.{way}_gb_per_s": str(gb_per_s) for way in ("read", "write")}


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that falls is 0, to a thousandth; the end that is next to it if nowhere."""
    while high / low > 1.001:
        middle = sqrt(low * high)
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return sqrt(low * high)


def _fit(runs: Runs, modes: tuple[str, ...]) -> tuple[float, float]:
    """The device-node's TFLOP/s from (S)'s largest loss, and then PCIe's GB/s from (B)'s means."""

    def loss(tflop_per_s: float) -> float:
        tried = replace(runs, changes={**runs.changes, **_arithmetic(tflop_per_s)})
        return min(tried.shares(S, B)) - S_LEAST

    tflop_per_s = _root(loss, _PEAK_TFLOP_PER_S / 16, _PEAK_TFLOP_PER_S)
    node = {**runs.changes, **_arithmetic(tflop_per_s)}

    def excess(gb_per_s: float) -> float:
        tried = replace(runs, changes={**node, **_host(gb_per_s)})
        return sum(log(tried.speedup(B, mode) / B_MEANS[mode]) for mode in modes)

    return tflop_per_s, _root(excess, 8.0, 24.0)


def calibration(changes: Changes, progress: Progress) -> Experiment:
    """The fit of the two rates again, and what other means would have given."""
    runs = Runs(changes=changes, progress=progress)
    rows: list[Row] = []
    for modes in (MODES, ("data",), ("model",)):
        tflop_per_s, gb_per_s = _fit(runs, modes)
        fitted = replace(runs, changes={**changes, **_arithmetic(tflop_per_s), **_host(gb_per_s)})
        rows.append(
            {
                "PCIe fitted to": " and ".join(f"{mode}-parallel" for mode in modes),
                "node, TFLOP/s": calibrated(tflop_per_s, digits=1),
                "of 256, %": calibrated(100 * tflop_per_s / _PEAK_TFLOP_PER_S, digits=1),
                "PCIe, GB/s": calibrated(gb_per_s, digits=1),
                "of its lanes' 15.75, %": calibrated(100 * gb_per_s / _LINE_GB_PER_S, digits=0),
                **{
                    claim.column: claim.cell(fitted, "" if mode in modes else "predicted")
                    for claim, mode in zip(CLAIMS["choices"], MODES, strict=False)
                },
            }
        )
    return Experiment(
        name="calibration",
        title="The two rates",
        rows=rows,
        notes=[
            "The device-node's rate is from (S)'s largest loss alone, on which PCIe has no part. "
            "All other experiments have the first row's rates, rounded."
        ],
    )


_CHOICES: tuple[tuple[str, Changes, Choices], ...] = (
    ("as above", {}, Choices()),
    ("inputs are not gathered again", {}, Choices(gathers_again=False)),
    ("weights' gradients step by step", {}, Choices(weights_at_once=False)),
    ("computing again costs nothing", {}, Choices(computes_again=False)),
    ("the device-node at its peak", _arithmetic(_PEAK_TFLOP_PER_S), Choices()),
    ("PCIe at 12 GB/s, as copies reach", _host(12), Choices()),
    ("PCIe of its own for each device", _host(2 * 14.2), Choices()),
    ("a hop takes 1 us", {"link.latency_ns": "1000"}, Choices()),
)


def choices(changes: Changes, progress: Progress) -> Experiment:
    """What the means are if what the paper leaves open was otherwise, with the same rates."""
    rows: list[Row] = []
    for name, changed, chosen in _CHOICES:
        runs = Runs(changes={**changed, **changes}, progress=progress, choices=chosen)
        mark = "predicted" if rows else ""
        cells = {each.column: each.cell(runs, mark) for each in CLAIMS["choices"]}
        rows.append({"choice": name, **cells})
    return Experiment(
        name="choices",
        title="What the choices do",
        rows=rows,
        notes=["The rates are those fitted with the first row's choices."],
    )


_TODAY = {
    "mc_dla": "the paper's",
    MC_DLA_RTL: "the paper's, rates of the RTL",
    "a100": "A100-class",
    "h100": "H100-class",
}


def today(changes: Changes, progress: Progress) -> Experiment:
    """The designs with devices of today."""
    rows: list[Row] = []
    for name, text in _TODAY.items():
        parts, runs = catalogue(changes, name), Runs(changes=changes, progress=progress, parts=name)
        row: dict[str, Cell | str] = {"devices": text}
        for mode in MODES:
            for name, design, over in (
                ("DC-DLA of the oracle", DC, ORACLE),
                ("(B) of the oracle", B, ORACLE),
                ("(B) beside DC-DLA", B, DC),
            ):
                row[f"{name}, {mode}-parallel"] = predicted(runs.speedup(design, mode, over))
        for text, link, count in (("links", "link", 6), ("memory-node", "dimms", 1)):
            rate = parts.link(link).write_gb_per_s
            row[f"{text}, GB/s"] = Cell(ours=count * rate.value, mark=rate.mark, digits=0)
        rows.append(row)
    return Experiment(
        name="today",
        title="Devices of today",
        rows=rows,
        notes=[
            "Eight devices, each with six links as fast as two (A100) or three (H100) of theirs, "
            "and PCIe 4 or 5, two to an uplink; sources are in `sw_driver/machine/mc_dla.py`. FP32 "
            "in memory, TF32 arithmetic at half of its peak. Rates of the RTL are by its [cycle "
            "model](../methods.md#the-cycles-of-a-memory-nodes-group), with packets of 4 KB; links "
            "of 150 GB/s leave its memory-node idle for a third of the time. With ten DIMMs of "
            "today it, no longer the links, is what moving waits for.",
        ],
    )


_PER_DEVICE = 64
_DEVICES = (8, 64, 256, 1024)


def scaleout(changes: Changes, progress: Progress) -> Experiment:
    """Figure 15: devices and memory-nodes at a plane of switches."""
    switched = {
        # Two links and a switch from node to node.
        "link.latency_ns": str(3 * int(catalogue(changes).link("link").latency_ns.value)),
        **changes,
    }
    rows: list[Row] = []
    alone = Runs(changes=switched, progress=progress, devices=8, batch=8 * _PER_DEVICE)
    for devices in _DEVICES:
        runs = replace(alone, devices=devices, batch=devices * _PER_DEVICE, modes=("data",))
        row: dict[str, Cell | str] = {"devices": f"{devices:,}"}
        for design in SCALE_OUT:
            shares = [
                alone.result(design, *each).total_ns / runs.result(design, *each).total_ns
                for each in runs.each()
            ]
            mean = 100 * len(shares) / sum(1 / share for share in shares)
            row[f"{design}, % of 8"] = predicted(mean, digits=1)
        dc, mc, oracle = SCALE_OUT
        row["MC-DLA beside DC-DLA"] = predicted(runs.speedup(mc, "data", dc))
        row["MC-DLA of the oracle"] = predicted(runs.speedup(mc, "data", oracle))
        row["memory-nodes, TB"] = given(
            devices * catalogue(changes).memory("memory_node").capacity_bytes.value / 1e12, digits=1
        )
        rows.append(row)
    return Experiment(
        name="scaleout",
        title="Figure 15: a plane of switches",
        rows=rows,
        notes=[
            f"Data-parallel, {_PER_DEVICE} samples a device; speed of each, of that with 8. A node "
            "has three links to the plane, over which all devices form rings, and each moves to a "
            "memory-node; a hop is two links and a switch, 300 ns. In a ring of 1,024 a collective "
            "makes 2,046 hops, of messages of 4 KB: that is what slows small networks.",
        ],
    )
