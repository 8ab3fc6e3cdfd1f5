"""Figure 9 and the rings of Figures 5 and 7."""

from __future__ import annotations

from functools import partial
from statistics import fmean

from ..plotting import draw_lines
from ..reproduction import Cell, Changes, Experiment, Progress, Row, given, predicted
from .collectives import KINDS, Lane, lane_ns
from .designs import catalogue
from .topology import TOPOLOGIES

__all__ = ["figure9", "topologies"]

_NODES = (2, 3, 4, 6, 8, 10, 12, 14, 16, 32, 64)
_SYNC_BYTES = 8 << 20
_SMALL_BYTES = 64 << 10


def figure9(changes: Changes, progress: Progress) -> Experiment:
    """Collectives on one ring, against the number of its nodes."""
    link = catalogue(changes).link("link")

    def lane(nodes: int) -> Lane:
        rate, hop_ns = float(link.write_gb_per_s.value), int(link.latency_ns.value)
        return Lane(gaps=(1,) * nodes, gb_per_s=rate, hop_ns=hop_ns)

    def took(kind: str, nodes: int, nbytes: int) -> int:
        # Half in each direction, at the same time.
        return lane_ns(lane(nodes), kind, nbytes // 2)

    rows: list[Row] = []
    for nodes in _NODES:
        row: dict[str, Cell | str] = {"nodes": str(nodes)}
        for kind in KINDS:
            progress(f"figure 9: {kind}, {nodes} nodes")
            ns = took(kind, nodes, _SYNC_BYTES)
            row[f"{kind}, us"] = predicted(ns / 1000, digits=1)
            row[f"{kind}, x"] = predicted(ns / took(kind, 2, _SYNC_BYTES))
        rows.append(row)
    more = {
        size: [100 * (took(kind, 16, size) / took(kind, 8, size) - 1) for kind in KINDS]
        for size in (_SYNC_BYTES, _SMALL_BYTES)
    }
    notes = [
        "x: beside two nodes. 8 MB on one ring, half of them each way, in messages of 4 KB, by the "
        "closed form, which equals messages to the nanosecond. 16 nodes instead of 8 cost "
        + ", ".join(
            f"{kind} {each:.1f} %" for kind, each in zip(KINDS, more[_SYNC_BYTES], strict=True)
        )
        + "; of 64 KB they cost "
        + ", ".join(f"{each:.0f} %" for each in more[_SMALL_BYTES])
        + ". The paper calls the first negligible and expects the second (III-B).",
    ]
    return Experiment(
        name="figure9",
        title="Figure 9: collectives against nodes",
        rows=rows,
        notes=notes,
        draw=partial(
            draw_lines,
            rows,
            "nodes",
            {f"{kind}, x": kind for kind in KINDS},
            "figure9.svg",
            "time, of that of 2 nodes",
        ),
    )


_HOPS = {"5": (8, 8, 8), "7(a)": (8, 8, 24), "7(b)": (8, 12, 20), "7(c)": (16, 16, 16)}


def topologies(changes: Changes, progress: Progress) -> Experiment:
    """Rings, hops, and how many links reach memory-nodes."""
    link = catalogue(changes).link("link")
    rate, hop_ns = float(link.write_gb_per_s.value), int(link.latency_ns.value)
    rows: list[Row] = []
    for name, topology in TOPOLOGIES.items():
        progress(f"figure {name}")
        row: dict[str, Cell | str] = {"figure": name}
        for number, (hops, paper) in enumerate(zip(topology.hops, _HOPS[name], strict=True)):
            cell = given(hops, paper, band=0, digits=0)
            row[f"hops of ring {number + 1}"] = cell
        links = fmean(sum(topology.to_memory(f"D{number}").values()) for number in range(8))
        row["links to memory-nodes"] = given(links, digits=0)
        row["GB/s to them"] = given(
            links * rate, {"5": None, "7(a)": 50, "7(b)": 50, "7(c)": 150}[name], digits=0
        )
        lanes = [
            Lane(gaps=topology.gaps(ring), gb_per_s=rate, hop_ns=hop_ns) for ring in topology.rings
        ]
        for size, text in ((_SYNC_BYTES, "8 MB"), (_SMALL_BYTES, "64 KB")):
            ns = max(lane_ns(lane, "all-reduce", size // 2 // len(lanes)) for lane in lanes)
            row[f"all-reduce of {text}, us"] = predicted(ns / 1000, digits=1)
        rows.append(row)
    return Experiment(
        name="topologies",
        title="Figures 5 and 7: rings",
        rows=rows,
        notes=[
            "All-reduce among the 8 device-nodes on all rings, both ways; memory-nodes pass "
            "messages on. What the longest ring's further hops take shows in small ones only."
        ],
    )
