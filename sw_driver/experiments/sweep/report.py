"""Report of a sweep: a row for each point, and complaints about failed points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sw_driver.axdimm.measure import refresh_note
from sw_driver.axdimm.runs import DRAM_TIMES
from sw_driver.experiments.settings import text_of
from sw_driver.fpga.synthesis import RESOURCES, find_yosys
from sw_driver.report import Report, Table, Watch, count, share

from .grid import Grid
from .plots import write_plots
from .run import run_sweep

__all__ = ["report"]

Row = dict[str, Any]


def report(
    grid: Grid,
    folder: Path,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    resources: bool = False,
    watch: Watch = Watch(),
) -> Report:
    """Measure the points of a grid and report all rows; write table and plots into ``folder``.

    Parameters and errors are those of :func:`~sw_driver.experiments.sweep.run.run_sweep`.
    """
    if resources:
        find_yosys()
    rows = run_sweep(grid, folder, jobs=jobs, cluster=cluster, resources=resources, watch=watch)
    plots = write_plots(folder, grid, rows)
    complaints = [
        f"the point {', '.join(f'{name}={row[name]}' for name in grid.names)} {_complaint(row)}"
        for row in rows
        if _complaint(row)
    ]
    return Report(
        results=rows,
        parts=[_table(grid, rows)],
        notes=sorted({note for row in rows if (note := refresh_note(row))}),
        machine=dict(grid.fixed),
        workload={"backend": grid.backend, "arithmetic": grid.arithmetic, "axes": dict(grid.axes)},
        files=[folder / "results.csv", folder / "results.sqlite", *plots],
        complaints=complaints,
        is_good=not complaints,
    )


def _complaint(row: Row) -> str:
    if row["error"]:
        return f"failed: {row['error']}"
    differs = "is not bit-exact: p, m or v differ from the golden model's"
    return differs if row["bit_exact"] is False else ""


def _table(grid: Grid, rows: Sequence[Row]) -> Table:
    columns: dict[str, Callable[[Row], str]] = {
        name: lambda row, name=name: text_of(name, row[name]) for name in grid.axes
    }
    # If ceilings differ between rows, a column shows them in place of the on-chip KiB.
    several = len({row["bytes_per_parameter"] for row in rows if not row["error"]}) > 1
    if several:
        columns["bytes"] = lambda row: f"{row['bytes_per_parameter']:.4g}"
        columns["ceiling"] = lambda row: f"{row['ceiling_mparams_per_s']:.1f}"
    columns["MP/s"] = lambda row: _speed(row["mparams_per_s"])
    columns["share"] = lambda row: share(row["efficiency"], 2)
    for name, heading in (("refresh",) * 2, ("row", "rows"), ("turn_around", "turns")):
        columns[heading] = lambda row, name=name: _share_of_clocks(row, name)
    columns["starved"] = lambda row: _share_of_clocks(row, "starved")
    if not several:
        columns["on-chip KiB"] = lambda row: f"{row['onchip_bytes'] / 1024:,.1f}"
    for name in (name for name in RESOURCES if rows and name in rows[0]):
        columns[name.replace("_", " ")] = lambda row, name=name: count(row[name])
    if any(row["bit_exact"] is not None for row in rows):
        columns["bit-exact"] = lambda row: {True: "yes", False: "NO", None: ""}[row["bit_exact"]]

    def cell(row: Row, place: int, text: Callable[[Row], str]) -> str:
        if row["error"] and place >= len(grid.axes):
            return "failed" if place == len(grid.axes) else ""
        return text(row)

    fixed = ", ".join(f"{name} {text_of(name, value)}" for name, value in grid.fixed.items())
    return Table(
        title=f"One step on the simulated AXDIMM ({grid.backend})",
        caption=f"{fixed}. MP/s: million parameters per second; share: of the ceiling; refresh, "
        "rows, turns, starved: shares of the DRAM's clocks lost to each cause.",
        headings=[*columns],
        rows=[[cell(row, n, text) for n, text in enumerate(columns.values())] for row in rows],
        words=(),
        is_dense=True,
    )


def _speed(mparams_per_s: float | None) -> str:
    return "" if mparams_per_s is None else f"{mparams_per_s:.2f}"


def _share_of_clocks(row: Row, name: str) -> str:
    total = sum(row[f"{time}_tck"] or 0 for time in DRAM_TIMES)
    return share(row[f"{name}_tck"] / total) if total else ""
