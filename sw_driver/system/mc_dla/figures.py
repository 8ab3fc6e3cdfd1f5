"""The paper's figures: rings, what the parts of a step take, and how fast the designs are."""

from __future__ import annotations

from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean, harmonic_mean

from sw_driver.device.timeline import Timeline
from sw_driver.workload.layers import load_layers

from ..collectives import KINDS, Lane, lane_ns
from ..plotting import draw_bars, draw_lines
from ..reproduction import Claim, Experiment, Row, calibrated, given, predicted
from .designs import DC, DESIGNS, DEVICES_OF_A_SOCKET, HC, ORACLE, B, L, S, catalogue
from .runs import BATCH, FITTED, MEANS, Runs
from .step import MODES, step
from .topology import TOPOLOGIES

__all__ = ["BAND", "figure9", "figure11", "figure12", "figure13", "figure14", "topologies"]

BAND = 0.10
"""Of the paper's means."""

_SYNC_BYTES = 8 << 20
_SMALL_BYTES = 64 << 10
_RINGS = {
    "5": ((8, 8, 8), None),
    "7(a)": ((8, 8, 24), 50),
    "7(b)": ((8, 12, 20), 50),
    "7(c)": ((16, 16, 16), 150),
}
"""Hops, and GB/s of a device-node's links to memory-nodes."""


def topologies(base: Runs) -> Experiment:
    """Rings, hops, and how many links reach memory-nodes."""
    link = catalogue(base.case.changes).link("link")
    rate, hop_ns = float(link.write_gb_per_s.value), int(link.latency_ns.value)
    rows: list[Row] = []
    for name, (hops, gb_per_s) in _RINGS.items():
        topology, where = TOPOLOGIES[name], {"section": f"Figure {name}", "digits": 0}
        row: dict[str, Claim | str] = {"figure": name}
        for number, paper in enumerate(hops):
            ours = topology.hops[number]
            row[f"hops of ring {number + 1}"] = given(ours, paper, band=0, unit="hops", **where)
        links = fmean(sum(topology.to_memory(f"D{number}").values()) for number in range(8))
        row["links to memory-nodes"] = given(links, digits=0)
        row["GB/s to them"] = given(links * rate, gb_per_s, unit="GB/s", **where)
        lanes = [
            Lane(gaps=topology.gaps(ring), gb_per_s=rate, hop_ns=hop_ns) for ring in topology.rings
        ]
        for size, text in ((_SYNC_BYTES, "8 MB"), (_SMALL_BYTES, "64 KB")):
            ns = max(lane_ns(lane, "all-reduce", size // 2 // len(lanes)) for lane in lanes)
            row[f"all-reduce of {text}, us"] = predicted(ns / 1000, digits=1)
        rows.append(row)
    ours, host = 6 * rate, float(catalogue(base.case.changes).link("pcie").read_gb_per_s.value)
    sheet = partial(given, section="III-B", digits=0)
    quoted = {
        "8 device-nodes to memory-nodes": sheet(8 * ours, 1200, unit="GB/s"),
        "7(c)'s links to memory-nodes, of 7(a)'s": sheet(ours / 50, 3, unit="x"),
        "a device-node's links, of PCIe: more than": calibrated(
            ours / host, 10, section="V-B", unit="x", band=(10, inf)
        ),
    }
    return Experiment(
        title="Figures 5 and 7: rings",
        rows=rows,
        quoted=quoted,
        notes=[
            "All-reduce among the 8 device-nodes on all rings, both ways; memory-nodes pass "
            "messages on. What the longest ring's further hops take shows in small ones only."
        ],
    )


def figure9(base: Runs) -> Experiment:
    """Collectives on one ring, against the number of its nodes."""
    link = catalogue(base.case.changes).link("link")
    rate, hop_ns = float(link.write_gb_per_s.value), int(link.latency_ns.value)

    def took(kind: str, nodes: int, nbytes: int = _SYNC_BYTES) -> int:
        # Half in each direction, at the same time.
        lane = Lane(gaps=(1,) * nodes, gb_per_s=rate, hop_ns=hop_ns)
        return lane_ns(lane, kind, nbytes // 2)

    rows: list[Row] = []
    for nodes in (2, 3, 4, 6, 8, 10, 12, 14, 16, 32, 64):
        row: dict[str, Claim | str] = {"nodes": str(nodes)}
        for kind in KINDS:
            ns = took(kind, nodes)
            row[f"{kind}, us"] = predicted(ns / 1000, digits=1)
            row[f"{kind}, x"] = predicted(ns / took(kind, 2))
        rows.append(row)
    large, small = (
        [f"{100 * (took(kind, 16, size) / took(kind, 8, size) - 1):.{digits}f} %" for kind in KINDS]
        for size, digits in ((_SYNC_BYTES, 1), (_SMALL_BYTES, 0))
    )
    each = ", ".join(map(" ".join, zip(KINDS, large, strict=True)))
    return Experiment(
        title="Figure 9: collectives against nodes",
        rows=rows,
        notes=[
            "x: beside two nodes. 8 MB on one ring, half of them each way, in messages of 4 KB, by "
            "the closed form, which equals messages to the nanosecond. 16 nodes instead of 8 cost "
            f"{each}; of 64 KB they cost {', '.join(small)}. The paper calls the first negligible "
            "and expects the second (III-B).",
        ],
        draw=partial(
            draw_lines, rows, {f"{kind}, x": kind for kind in KINDS}, "time, of that of 2 nodes"
        ),
    )


_SHOWN = "resnet-34"


def figure11(base: Runs) -> Experiment:
    """Computation, synchronization and overlaying, each by itself."""
    rows: list[Row] = []
    for network, mode in base.each():
        results = {each: base.result(each, network, mode) for each in (DC, HC, S, L, B)}
        took = {
            "compute, ms": results[DC].compute_ns,
            **{f"sync. {each}, ms": results[each].sync_ns for each in (DC, HC, B)},
            **{f"overlay {each}, ms": result.overlay_ns for each, result in results.items()},
        }
        cells = {name: predicted(ns / 1e6) for name, ns in took.items()}
        rows.append({"network": network, "split": mode, **cells})

    def times(part: str, design: str = HC, over: str = DC) -> float:
        """What a design takes for a part of a step, of what another takes."""
        return fmean(
            getattr(base.result(design, *each), part) / getattr(base.result(over, *each), part)
            for each in base.each()
        )

    steps = [base.result(DC, *each) for each in base.each()]
    bound = sum(each.overlay_ns > max(each.compute_ns, each.sync_ns) for each in steps)
    claim = partial(predicted, section="V-A", unit="x", band=BAND)
    slow = (
        "12 % are 75 GB/s beside 9, and a PCIe switch of two devices has at most 7.9 for each. "
        "With that, overlaying is longest in more steps, too."
    )
    return Experiment(
        title="Figure 11: parts of a step",
        rows=rows,
        quoted={
            "HC-DLA: overlaying, times DC-DLA's": claim(
                times("overlay_ns"), 1 - 0.88, excluded=slow
            ),
            "HC-DLA: overlaying, less by": claim(1 - times("overlay_ns"), 0.88),
            "HC-DLA: synchronization, times DC-DLA's": claim(times("sync_ns"), 1 + 0.90),
            "DC-DLA: steps with overlaying longest, of 16": claim(
                bound, 14, unit="steps", digits=0, excluded=slow
            ),
            "MC-DLA(L): overlaying, times (B)'s": claim(
                times("overlay_ns", L, B), 2, section="Figure 10"
            ),
        },
        notes=[
            "Each part as long as it is busy in a step; they overlap, and where they share links "
            "both are longer. The paper has means only. `--out DIR` writes timelines of "
            f"{_SHOWN}, data-parallel."
        ],
        draw=partial(_draw_parts, base, rows),
    )


def _draw_parts(base: Runs, rows: list[Row], path: Path) -> list[Path]:
    panels = {
        f"{each}: % of its parts": ["compute, ms", f"sync. {each}, ms", f"overlay {each}, ms"]
        for each in (DC, B)
    }
    files = draw_bars(rows, panels, path, stacked=True, shares=True)
    for design in (DC, B):
        timeline = Timeline(backend="model", fabric_mhz=1000)
        parts, layers = catalogue(base.case.changes), load_layers(_SHOWN)
        step(DESIGNS[design], parts, layers, "data", BATCH, timeline=timeline)
        files.append(path.with_suffix(f".{design[:6].lower()}.json.gz"))
        timeline.write(files[-1])
    return files


_SOCKET_GB_PER_S = 300
"""Of a socket's memory, in HC-DLA (IV)."""


def figure12(base: Runs) -> Experiment:
    """Bandwidth of a socket's memory that device-nodes use."""
    rows: list[Row] = []
    most = moving = 0.0
    for network, mode in base.each():
        row: dict[str, Claim | str] = {"network": network, "split": mode}
        for design in (DC, HC, B):
            result, on_host = base.result(design, network, mode), DESIGNS[design].on_host
            moved = DEVICES_OF_A_SOCKET * result.overlay_bytes * on_host
            most = max(most, moved / result.total_ns)
            moving = max(moving, moved / result.overlay_ns)
            row[f"{design}: mean, GB/s"] = predicted(moved / result.total_ns, digits=1)
            row[f"{design}: while moving, GB/s"] = predicted(moved / result.overlay_ns, digits=1)
        rows.append(row)
    return Experiment(
        title="Figure 12: bandwidth of a socket's memory",
        rows=rows,
        quoted={
            f"HC-DLA: largest mean, of {_SOCKET_GB_PER_S} GB/s": predicted(
                most / _SOCKET_GB_PER_S,
                0.92,
                section="II-C",
                unit="x",
                excluded="A step of HC-DLA that moves at 92 % of 75 GB/s throughout takes at most "
                "1 / 0.92 of what moving takes, and DC-DLA, at 12 % of that rate (V-A), at least "
                "0.92 / 0.12 = 7.7 times as long; HC-DLA's means of 1.32 and 1.38 leave little "
                "room for such steps.",
            ),
            "HC-DLA: largest while moving, of that": predicted(
                moving / _SOCKET_GB_PER_S, 1, section="IV", unit="x", band=BAND
            ),
            "HC-DLA's socket, of real ones: at least": given(
                _SOCKET_GB_PER_S / 120,
                3,
                section="IV",
                unit="x",
                excluded="The paper's 3 to 4 times are 300 of a Xeon's 80 GB/s, 3.75, and of a "
                "Power9's 120 (II-C), 2.5.",
            ),
        },
        notes=[f"{DEVICES_OF_A_SOCKET} device-nodes are on a socket."],
    )


def figure13(base: Runs) -> Experiment:
    """Speed of all designs beside DC-DLA."""
    rows: list[Row] = []
    for network, mode in base.each():
        ns = {each: base.result(each, network, mode).total_ns for each in DESIGNS}
        speeds = {design: predicted(ns[DC] / ns[design]) for design in DESIGNS}
        rows.append({"": f"{network}, {mode}-parallel", **speeds})
    claim = partial(predicted, section="V-B", unit="x", band=BAND)
    fitted = partial(calibrated, section="V-B", unit="x", band=BAND)
    means = {mode: {each: base.speedup(each, mode) for each in DESIGNS} for mode in (*MODES, "")}
    for mode, hc, why in (("data", 1.32, _HC_CANNOT), ("model", 1.38, "")):
        cells = {each: predicted(mean) for each, mean in means[mode].items()}
        cells[B] = fitted(means[mode][B], MEANS[f"(B), {mode}-parallel"])
        cells[HC] = claim(means[mode][HC], hc, excluded=why)
        rows.append({"": f"mean, {mode}-parallel", **cells})
    rows.append({"": "mean of both", **{each: predicted(x) for each, x in means[""].items()}})
    in_order = list(means[""].values()) == sorted(means[""].values())
    both = fmean(means[mode][B] for mode in MODES)

    return Experiment(
        title="Figure 13: speed beside DC-DLA",
        rows=rows,
        quoted={
            "(B), arithmetic mean of the two means": fitted(both, 2.8),
            **{
                name: (fitted if name in FITTED else claim)(ours, MEANS[name])
                for name, ours in base.means().items()
                if "parallel" not in name
            },
            "(B) of the oracle, least": claim(min(base.shares(B, ORACLE)), 0.84),
            "(B) of the oracle, most": claim(max(base.shares(B, ORACLE)), 0.99),
            "designs in the paper's order, by the mean of both": claim(
                float(in_order), 1, unit="", band=0, digits=0
            ),
        },
        notes=[
            "Means are harmonic, as the paper says of its own; its 2.8 of both is the arithmetic "
            "mean of 3.5 and 2.1, whose harmonic mean is 2.63. (L) is at least "
            f"{min(base.shares(L, B)):.2f} of (B)."
        ],
        draw=partial(draw_bars, rows, {"speed, of that of DC-DLA": list(DESIGNS)}),
    )


_HC_CANNOT = (
    "The paper's figures of it exclude each other. Mean times are the inverses of mean speed-ups, "
    "in shares of DC-DLA's: (B) takes 1/3.5 = 0.29, (S), at most 24 % slower, up to 0.38, HC-DLA "
    "1/1.32 = 0.76. HC-DLA moves over three links what (S) moves over two, so only its collectives "
    "can be slower: over half of the links they take at most twice as long. Even if nothing hid "
    "them, that adds at most what they take in (S), or in (B) but for hops, and no more than all "
    "of (B)'s step: 0.29 of the 0.38 that there are between them."
)


def figure14(base: Runs) -> Experiment:
    """(B) beside DC-DLA, against the batch."""
    rows: list[Row] = []
    every: list[float] = []
    for batch in (128, 256, 512, 1024):
        runs, cell = base.of(batch=batch), calibrated if batch == BATCH else predicted
        speeds = {f"{mode}-parallel": cell(runs.speedup(B, mode)) for mode in MODES}
        rows.append({"batch": str(batch), **speeds})
        every += runs.shares(B, DC)
    mean = predicted(harmonic_mean(every), 2.17, section="V-B", unit="x", band=BAND)
    return Experiment(
        title="Figure 14: speed of MC-DLA(B) against the batch",
        rows=rows,
        quoted={"mean of all batches": mean},
        notes=[
            "The paper's batches are in its picture only; these are ours. All three parts of "
            "model-parallel training grow with the batch."
        ],
        draw=partial(
            draw_lines,
            rows,
            {f"{mode}-parallel": f"{mode}-parallel" for mode in MODES},
            "speed, of that of DC-DLA",
        ),
    )
