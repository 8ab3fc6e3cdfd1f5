"""Figures 11 to 14: what the parts of a step take, and how fast the designs are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from sw_driver.device.timeline import Timeline
from sw_driver.workload.layers import load_layers

from ..plotting import draw_bars, draw_lines
from ..reproduction import Changes, Experiment, Progress, Row, calibrated, predicted
from .designs import DC, DESIGNS, DEVICES_OF_A_SOCKET, HC, B, L, S, catalogue
from .paper import BAND, CLAIMS, add_claims
from .runs import BATCH, Runs, harmonic_mean
from .step import MODES, step

__all__ = ["figure11", "figure12", "figure13", "figure14"]

_SHOWN = "resnet-34"
_BATCHES = (128, 256, 512, 1024)


def figure11(changes: Changes, progress: Progress) -> Experiment:
    """Computation, synchronization and overlaying, each by itself."""
    runs = Runs(changes=changes, progress=progress)
    rows: list[dict[str, Any]] = []
    for network, mode in runs.each():
        results = {each: runs.result(each, network, mode) for each in (DC, HC, S, L, B)}
        took = {
            "compute, ms": results[DC].compute_ns,
            **{f"sync. {each}, ms": results[each].sync_ns for each in (DC, HC, B)},
            **{f"overlay {each}, ms": result.overlay_ns for each, result in results.items()},
        }
        cells = {name: predicted(ns / 1e6) for name, ns in took.items()}
        rows.append({"network": network, "split": mode, **cells})
    add_claims(rows, "network", CLAIMS["figure11"], runs)
    return Experiment(
        name="figure11",
        title="Figure 11: parts of a step",
        rows=rows,
        notes=[
            "Each part as long as it is busy in a step; they overlap, and where they share links "
            "both are longer. The paper has means only. Its 12 % of overlaying are 75 GB/s beside "
            "9, and a PCIe switch of two devices has at most 7.9 for each: that ratio, and the "
            f"count, are not judged. `--out DIR` writes timelines of {_SHOWN}, data-parallel."
        ],
        draw=partial(_timelines, changes),
    )


def _timelines(changes: Changes, folder: Path) -> list[Path]:
    files = []
    for design in (DC, B):
        timeline = Timeline(backend="model", fabric_mhz=1000)
        parts, layers = catalogue(changes), load_layers(_SHOWN)
        step(DESIGNS[design], parts, layers, "data", BATCH, timeline=timeline)
        files.append(folder / f"figure11.{design[:6].lower()}.json.gz")
        timeline.write(files[-1])
    return files


def figure12(changes: Changes, progress: Progress) -> Experiment:
    """Bandwidth of a socket's memory that device-nodes use."""
    runs = Runs(changes=changes, progress=progress)
    rows: list[dict[str, Any]] = []
    for network, mode in runs.each():
        row: dict[str, Any] = {"network": network, "split": mode}
        for design in (DC, HC, B):
            result, on_host = runs.result(design, network, mode), DESIGNS[design].on_host
            moved = DEVICES_OF_A_SOCKET * result.overlay_bytes * on_host
            row[f"{design}: mean, GB/s"] = predicted(moved / result.total_ns, digits=1)
            row[f"{design}: while moving, GB/s"] = predicted(moved / result.overlay_ns, digits=1)
        rows.append(row)
    add_claims(rows, "network", CLAIMS["figure12"], runs)
    return Experiment(
        name="figure12",
        title="Figure 12: bandwidth of a socket's memory",
        rows=rows,
        notes=[
            f"{DEVICES_OF_A_SOCKET} device-nodes are on a socket. Not judged: a step of HC-DLA "
            "that moves at 92 % of 75 GB/s throughout takes at most 1 / 0.92 of what moving takes, "
            "and DC-DLA, at 12 % of that rate (V-A), at least 0.92 / 0.12 = 7.7 times as long; "
            "HC-DLA's means of 1.32 and 1.38 leave little room for such steps."
        ],
    )


def figure13(changes: Changes, progress: Progress) -> Experiment:
    """Speed of all designs beside DC-DLA."""
    runs = Runs(changes=changes, progress=progress)
    rows: list[dict[str, Any]] = []
    for network, mode in runs.each():
        ns = {each: runs.result(each, network, mode).total_ns for each in DESIGNS}
        speeds = {design: predicted(ns[DC] / ns[design]) for design in DESIGNS}
        rows.append({"": f"{network}, {mode}-parallel", **speeds})
    for mode in (*MODES, ""):
        means = {design: predicted(runs.speedup(design, mode)) for design in DESIGNS}
        rows.append({"": f"mean, {mode}-parallel" if mode else "mean of both", **means})
    add_claims(rows, "", CLAIMS["figure13"], runs)
    return Experiment(
        name="figure13",
        title="Figure 13: speed beside DC-DLA",
        rows=rows,
        notes=[
            "Means are harmonic, as the paper says of its own; its 2.8 of both is the arithmetic "
            "mean of 3.5 and 2.1, whose harmonic mean is 2.63.",
            "HC-DLA, data-parallel, is not judged, for the paper's figures of it exclude each "
            "other. Mean times are the inverses of mean speed-ups, in shares of DC-DLA's: (B) "
            "takes 1/3.5 = 0.29, (S), at most 24 % slower, up to 0.38, HC-DLA 1/1.32 = 0.76. "
            "HC-DLA moves over three links what (S) moves over two, so only its collectives can "
            "be slower: over half of the links they take at most twice as long. Even if nothing "
            "hid them, that adds at most what they take in (S), or in (B) but for hops, and no "
            "more than all of (B)'s step: 0.29 of the 0.38 that there are between them.",
        ],
        draw=partial(
            draw_bars, rows, "", list(DESIGNS), "figure13.svg", "speed, of that of DC-DLA"
        ),
    )


def figure14(changes: Changes, progress: Progress) -> Experiment:
    """(B) beside DC-DLA, against the batch."""
    lines: list[Row] = []
    every: list[float] = []
    for batch in _BATCHES:
        runs = Runs(changes=changes, progress=progress, batch=batch)
        cell = calibrated if batch == BATCH else predicted
        speeds = {f"{mode}-parallel": cell(runs.speedup(B, mode)) for mode in MODES}
        lines.append({"batch": str(batch), **speeds})
        every += runs.shares(B, DC)
    mean = predicted(harmonic_mean(every), 2.17, band=BAND)
    return Experiment(
        name="figure14",
        title="Figure 14: speed of MC-DLA(B) against the batch",
        rows=[*lines, {"batch": "mean of all", "both": mean}],
        notes=[
            "The paper's batches are in its picture only; these are ours. All three parts of "
            "model-parallel training grow with the batch."
        ],
        draw=partial(
            draw_lines,
            lines,
            "batch",
            {f"{mode}-parallel": f"{mode}-parallel" for mode in MODES},
            "figure14.svg",
            "speed, of that of DC-DLA",
        ),
    )
