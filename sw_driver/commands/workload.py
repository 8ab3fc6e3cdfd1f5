"""``nearmem workload``: what a training step is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from . import (
    FLAT,
    OutputFolder,
    OutputOptions,
    Refusal,
    output_folder,
    print_files,
    progress_console,
    turning,
)
from .screen import engineering, print_prose, print_rows

if TYPE_CHECKING:
    from sw_driver.workload import Trace

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule of a function's model (default: adam)"""
    out: OutputFolder = None
    """folder for a picture of the bytes that have memory in each operation, and for the trace of a
    function (default: none)"""


def run(what: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Show a training step: operations, bytes, lifetimes.

    Shows what a network's training step is made of: operations of each pass, bytes of each kind of
    tensor and at the peak, in how many stages (a layer's forward or backward pass) tensors live,
    and the ten most expensive operations. The step of a function is captured by PyTorch, without
    memory for the model or a GPU.

    Parameters
    ----------
    what
        a network that is shipped, such as gpt3-xl; the file of a trace; or FILE.py:FUNCTION, which
        takes nothing and returns (model, batch, step), so that step(model, *batch) is the loss
    """
    from rich.text import Text

    from sw_driver.machine.presets import PRESETS
    from sw_driver.workload.summary import summary
    from sw_driver.workload.trace import SUFFIX, TraceError
    from sw_driver.workload.what import load_workload

    gpu = PRESETS["axdimm_platform"].device("gpu")
    progress = progress_console(options)
    with turning(TraceError, into=Refusal), progress.status(Text(f"capturing {what}")):
        trace = load_workload(what, options.rule)
        figures = summary(trace, gpu.cost)
    files: list[Path] = []
    if options.out is not None:
        folder = output_folder(options.out, "workload")
        files.append(_draw(trace, folder / f"{trace.name}.svg"))
        if ".py:" in what:
            files.append(folder / f"{trace.name}{SUFFIX}")
            trace.save(files[-1])
    if options.json:
        print(json.dumps(figures | {"files": [str(file) for file in files]}, indent=2))
    elif not options.quiet:
        rates = f"{gpu.tflop_per_s.value} TFLOP/s, {gpu.gb_per_s.value} GB/s"
        _print(figures, f"{rates} and {gpu.launch_ns.value:,} ns to begin")
        if files:
            print_files(options, files)
    return 0


def _print(figures: Mapping[str, Any], rates: str) -> None:
    peak = figures["peak"]
    print_prose(
        f"{figures['name']}: {figures['layers']} layers, {figures['parameters']:,} parameters; at "
        f"most {_shown('nbytes', peak['nbytes'])} at a time, in operation {peak['operation']}, "
        f"{peak['kind']} of {peak['layer']} in the {peak['phase']} pass"
    )
    _print_table("Operations", figures["phases"])
    _print_table("Tensors, and the most bytes of each kind", figures["kinds"])
    _print_table("In how many stages tensors live", figures["lifetimes"])
    expensive = [
        {"operation": f"{row['operation']} {row['kind']}"}
        | {name: cell for name, cell in row.items() if name not in ("operation", "kind")}
        for row in figures["expensive"]
    ]
    _print_table(f"The most expensive operations at {rates}", expensive)


def _print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    headings = [
        name.replace("nbytes", "bytes").replace("flops", "FLOP").replace("_", " ")
        for name in rows[0]
    ]
    words = sum(isinstance(cell, str) for cell in rows[0].values())
    cells = [[_shown(name, cell) for name, cell in row.items()] for row in rows]
    print_rows(title, headings, cells, words)


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
    from sw_driver.workload.summary import alive_bytes
    from sw_driver.workload.trace import KINDS

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
    axes.set(title=trace.name, xlabel="operation", ylabel="bytes that have memory")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return write_picture(path, figure)
