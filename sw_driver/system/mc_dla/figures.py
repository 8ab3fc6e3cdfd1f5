"""Figures 11 to 13: what the parts of a step take, and how fast the designs are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from sw_driver.runtime.timeline import Timeline
from sw_driver.workload.layers import load_layers

from ..reproduction import Cell, Changes, Experiment, Progress, Row, calibrated, predicted
from .designs import DESIGNS, DEVICES_OF_A_SOCKET, catalogue
from .paper import PAPER
from .plots import draw_bars
from .runs import BATCH, Runs, harmonic_mean
from .step import MODES, step

__all__ = ["BAND", "figure11", "figure12", "figure13"]

BAND = 0.10
"""Of the paper's means."""

_B, _L, _S, _HC, _DC, _O = "MC-DLA(B)", "MC-DLA(L)", "MC-DLA(S)", "HC-DLA", "DC-DLA", "DC-DLA(O)"


def figure11(changes: Changes, progress: Progress) -> Experiment:
    """Computation, synchronization and overlaying, each by itself."""
    runs = Runs(changes=changes, progress=progress)
    rows: list[Row] = []
    bound = 0
    for network, mode in runs.each():
        row: dict[str, Cell | str] = {"network": network, "split": mode}
        results = {each: runs.result(each, network, mode) for each in (_DC, _HC, _S, _L, _B)}
        dc = results[_DC]
        bound += dc.overlay_ns > max(dc.compute_ns, dc.sync_ns)
        row["compute, ms"] = predicted(dc.compute_ns / 1e6)
        for design in (_DC, _HC, _B):
            row[f"sync. {design}, ms"] = predicted(results[design].sync_ns / 1e6)
        for design, result in results.items():
            row[f"overlay {design}, ms"] = predicted(result.overlay_ns / 1e6)
        rows.append(row)

    def ratio(part: str) -> float:
        return fmean(
            getattr(runs.result(_HC, *each), part) / getattr(runs.result(_DC, *each), part)
            for each in runs.each()
        )

    rows += [
        {
            "network": "HC-DLA: overlaying, times DC-DLA's",
            "mean": predicted(ratio("overlay_ns"), 1 - PAPER["overlay_cut"]),
        },
        {
            "network": "HC-DLA: overlaying, less by",
            "mean": predicted(1 - ratio("overlay_ns"), PAPER["overlay_cut"], band=BAND),
        },
        {
            "network": "HC-DLA: synchronization, times DC-DLA's",
            "mean": predicted(ratio("sync_ns"), 1 + PAPER["sync_added"], band=BAND),
        },
        {
            "network": "DC-DLA: steps with overlaying longest, of 16",
            "mean": predicted(bound, PAPER["overlay_bound"], digits=0),
        },
    ]
    return Experiment(
        name="figure11",
        title="Figure 11: parts of a step",
        rows=rows,
        notes=[
            "Each part as long as it is busy in a step; they overlap, and where they share links "
            "both are longer. With half of the links a ring takes twice as long, but for what its "
            "hops take. In words the paper has means only: an overlaying of 12 % is that of "
            "75 GB/s beside 9, and a PCIe switch of two devices has at most 7.9 for each. The "
            "count, and the ratio behind the 88 %, are not judged. `--out DIR` writes timelines of "
            f"{_SHOWN} in data-parallel training, for Perfetto."
        ],
        draw=partial(_timelines, changes),
    )


_SHOWN = "resnet-34"


def _timelines(changes: Changes, folder: Path) -> list[Path]:
    files = []
    for design in (_DC, _B):
        timeline = Timeline(backend="model", fabric_mhz=1000)
        parts, layers = catalogue(changes), load_layers(_SHOWN)
        step(DESIGNS[design], parts, layers, "data", BATCH, timeline=timeline)
        files.append(folder / f"figure11.{design[:6].lower()}.json.gz")
        timeline.write(files[-1])
    return files


def figure12(changes: Changes, progress: Progress) -> Experiment:
    """Bandwidth of a socket's memory that device-nodes use."""
    runs = Runs(changes=changes, progress=progress)
    rows: list[Row] = []
    for network, mode in runs.each():
        row: dict[str, Cell | str] = {"network": network, "split": mode}
        for design in (_DC, _HC, _B):
            result, on_host = runs.result(design, network, mode), DESIGNS[design].on_host
            moved = DEVICES_OF_A_SOCKET * result.overlay_bytes * on_host
            row[f"{design}: mean, GB/s"] = predicted(moved / result.total_ns, digits=1)
            row[f"{design}: while moving, GB/s"] = predicted(moved / result.overlay_ns, digits=1)
        rows.append(row)
    most = max(
        DEVICES_OF_A_SOCKET
        * runs.result(_HC, *each).overlay_bytes
        / runs.result(_HC, *each).total_ns
        / _SOCKET_GB_PER_S
        for each in runs.each()
    )
    rows.append(
        {
            "network": f"HC-DLA: largest mean, of {_SOCKET_GB_PER_S} GB/s",
            "mean": predicted(most, PAPER["hc_bandwidth"]),
        }
    )
    return Experiment(
        name="figure12",
        title="Figure 12: bandwidth of a socket's memory",
        rows=rows,
        notes=[
            f"{DEVICES_OF_A_SOCKET} device-nodes are on a socket. Not judged: a step of HC-DLA "
            "that moves at 92 % of 75 GB/s throughout takes at most 1 / 0.92 of what moving takes, "
            "and DC-DLA, with 12 % of that rate (V-A), at least 0.92 / 0.12 = 7.7 times as long; "
            "HC-DLA's means of 1.32 and 1.38 leave little room for such steps."
        ],
    )


_SOCKET_GB_PER_S = 300
"""Paper IV: of HC-DLA."""


def figure13(changes: Changes, progress: Progress) -> Experiment:
    """Speed of all designs beside DC-DLA."""
    runs = Runs(changes=changes, progress=progress)
    designs = list(DESIGNS)
    rows: list[dict[str, Cell | str]] = []
    for network, mode in runs.each():
        base = runs.result(_DC, network, mode).total_ns
        row: dict[str, Cell | str] = {"": f"{network}, {mode}-parallel"}
        for design in designs:
            ns = runs.result(design, network, mode).total_ns
            row[design] = predicted(base / ns)
        rows.append(row)
    bars = list(rows)
    for mode in (*MODES, ""):
        means: dict[str, Cell | str] = {"": f"mean, {mode}-parallel" if mode else "mean of both"}
        for design in designs:
            means[design] = predicted(runs.speedup(design, mode))
        rows.append(means)
    data, model = rows[-3:-1]
    for row, mode in ((data, "data"), (model, "model")):
        row[_B] = calibrated(runs.speedup(_B, mode), PAPER["b"][mode], band=BAND)
        # That of data-parallel training cannot be; see the note.
        band = BAND if mode == "model" else None
        row[_HC] = predicted(runs.speedup(_HC, mode), PAPER["hc"][mode], band=band)
    both = calibrated(
        fmean(runs.speedup(_B, mode) for mode in MODES), PAPER["b"]["both"], band=BAND
    )
    rows.append({"": "arithmetic mean of the two means", _B: both})
    oracle = runs.shares(_B, _O)
    star, local = runs.shares(_S, _B), runs.shares(_L, _B)
    least, most = PAPER["b_of_oracle_range"]
    rows += [
        {"": "(B) of the oracle: mean", _B: _mean(oracle, PAPER["b_of_oracle"])},
        {"": "(B) of the oracle: least", _B: predicted(min(oracle), least, band=BAND)},
        {"": "(B) of the oracle: most", _B: predicted(max(oracle), most, band=BAND)},
        {"": "of (B): mean", _S: _mean(star, PAPER["s_of_b"]), _L: _mean(local, PAPER["l_of_b"])},
        {
            "": "of (B): least",
            _S: calibrated(min(star), PAPER["s_of_b_least"], band=BAND),
            _L: predicted(min(local)),
        },
    ]
    order = [runs.speedup(design) for design in designs]
    rows.append(
        {
            "": "designs in the paper's order, by the mean of both",
            _B: predicted(float(order == sorted(order)), 1, band=0, digits=0),
        }
    )
    return Experiment(
        name="figure13",
        title="Figure 13: speed beside DC-DLA",
        rows=rows,
        notes=[
            "Means are harmonic, as the paper says of its own. Its 2.8 of both is the arithmetic "
            "mean of 3.5 and 2.1, whose harmonic mean is 2.63.",
            _IMPOSSIBLE,
        ],
        draw=partial(draw_bars, bars, "", designs, "figure13.svg", "speed, of that of DC-DLA"),
    )


_IMPOSSIBLE = (
    "HC-DLA in data-parallel training is not judged, for the paper's figures of it exclude each "
    "other. With harmonic means of speed-ups, mean times are their inverses, in shares of "
    "DC-DLA's: (B) takes 1/3.5 = 0.29, (S), at most 24 % slower, up to 0.38, and HC-DLA 1/1.32 = "
    "0.76. HC-DLA moves over three links what (S) moves over two, so only its collectives can be "
    "slower: they have half the links, and take at most twice as long. Even if nothing hid them, "
    "the difference of 0.38 would be at most what they take in (S), which is what they take in "
    "(B), but for hops, and no more than all of (B)'s step: 0.29. In model-parallel training they "
    "fit."
)


def _mean(values: Sequence[float], paper: float) -> Cell:
    return predicted(harmonic_mean(values), paper, band=BAND)
