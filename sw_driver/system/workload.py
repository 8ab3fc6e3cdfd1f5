"""Report of a training step: operations, bytes, lifetimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sw_driver.machine.presets import PRESETS
from sw_driver.report import Report, Table, Watch, engineering
from sw_driver.workload.loading import load_workload
from sw_driver.workload.networks import CAPTURED
from sw_driver.workload.summary import alive_bytes, described, summary
from sw_driver.workload.trace import KINDS, SUFFIX, Trace

__all__ = ["report"]


_KINDS = (
    "most bytes: of this kind at the time when it has most; "
    "peak bytes: when all kinds together have most"
)


def report(
    workload: str,
    *,
    rule: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    folder: Path | None = None,
    watch: Watch = Watch(),
) -> Report:
    """Return a training step's operations and tensors, with the operations longest on a V100.

    ``folder`` is for a picture of the bytes that have memory in each operation and, for a
    captured network, the trace. Raises as :func:`~sw_driver.workload.loading.load_workload` does.
    """
    watch.say(f"capturing {workload}")
    gpu = PRESETS["axdimm_platform"].device("gpu")
    trace = load_workload(workload, rule, batch=batch, seq=seq)
    results, known = summary(trace, gpu.cost), described(trace)
    files: list[Path] = []
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        files.append(_draw(trace, folder / f"{trace.name}.svg"))
        if ".py:" in workload or workload in CAPTURED:
            files.append(folder / f"{trace.name}{SUFFIX}")
            trace.save(files[-1])
    rates = f"{gpu.tflop_per_s.value} TFLOP/s, {gpu.gb_per_s.value} GB/s"
    rates += f" and {gpu.launch_ns.value:,} ns to begin"
    expensive = [
        {"operation": f"{row['operation']} {row['kind']}"}
        | {name: cell for name, cell in row.items() if name not in ("operation", "kind")}
        for row in results["expensive"]
    ]
    peak = results["peak"]
    return Report(
        title=f"{trace.name}: {known['layers']} layers, {known['parameters']:,} parameters; peak "
        f"memory {_shown('nbytes', peak['nbytes'])} in operation {peak['operation']}, "
        f"{peak['kind']} of {peak['layer']} in the {peak['phase']} pass",
        results=results,
        parts=[
            _table("Operations", results["phases"]),
            _table("Tensors and peak bytes by kind", results["kinds"], _KINDS),
            _table("Tensors by the number of stages they live in", results["lifetimes"]),
            _table(f"Most expensive operations at {rates}", expensive),
        ],
        machine={"name": "axdimm_platform", "device": "gpu"},
        workload=known,
        files=files,
    )


def _table(title: str, rows: Sequence[Mapping[str, Any]], caption: str = "") -> Table:
    headings = [
        name.replace("nbytes", "bytes").replace("flops", "FLOP").replace("_", " ")
        for name in rows[0]
    ]
    words = [place for place, cell in enumerate(rows[0].values()) if isinstance(cell, str)]
    cells = [[_shown(name, cell) for name, cell in row.items()] for row in rows]
    return Table(title=title, headings=headings, rows=cells, words=words, caption=caption)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1%}"
    if name == "flops" or name.endswith("nbytes"):
        return engineering(value, "" if name == "flops" else "B")
    return value if isinstance(value, str) else f"{value:,}"


def _draw(trace: Trace, path: Path) -> Path:
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    from sw_driver.files import write_picture

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    nbytes = [alive_bytes(trace, kind)[:-1] for kind in KINDS]
    labels = [kind.replace("_", " ") for kind in KINDS]
    axes.stackplot(range(len(trace.ops)), nbytes, labels=labels, rasterized=True)
    axes.yaxis.set_major_formatter(EngFormatter("B"))
    for phase, ops in groupby(trace.ops, key=lambda op: op.phase):
        first, *others = (op.id for op in ops)
        axes.axvline(first, color="black", linewidth=0.5)
        if len(others) > len(trace.ops) / 10:
            axes.text(first, 1, f" {phase}", va="top", transform=axes.get_xaxis_transform())
    axes.set(title=trace.name, xlabel="operation", ylabel="allocated bytes")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return write_picture(path, figure)
