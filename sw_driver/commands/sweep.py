"""``nearmem sweep``: a grid of configurations, measured one by one."""

from __future__ import annotations

import json
import sys
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from . import (
    FLAT,
    Failure,
    MachineOptions,
    OutputFolder,
    OutputOptions,
    Refusal,
    exclusive,
    integer,
    print_files,
    progress_console,
    refresh_note,
    turning,
)
from .screen import print_prose, print_table

if TYPE_CHECKING:
    from rich.table import Table

    from sw_driver.experiments.sweep.grid import Grid

__all__ = ["Options", "run"]

_PACE = exclusive()


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions, OutputOptions):
    """Options of the command."""

    backend: Literal["rtl", "cycles"] = "rtl"
    """what is measured: the Verilated RTL, or the model of its cycles"""
    axis: Annotated[tuple[str, ...], Parameter(metavar="KEY=V1,V2,...")] = ()
    """a setting to vary; may be given several times"""
    count: Annotated[str | None, Parameter(metavar="N[,N...]")] = None
    """parameters of each channel (default: 4194304, as many as show what a long run does)"""
    jobs: Annotated[int | None, integer(1, 4096, metavar="J"), _PACE] = None
    """points measured at a time (default: as many as the cores can work on)"""
    out: OutputFolder = None
    """where results go (default: build/sweep)"""
    dask: Annotated[str | None, Parameter(metavar="ADDRESS"), _PACE] = None
    """measure on the cluster of this Dask scheduler, as many points at a time as it has workers"""
    no_arithmetic: bool = False
    """leave the arithmetic out of the RTL: the same cycles, much sooner, but nothing to compare
    with the golden model"""
    resources: bool = False
    """synthesize each kernel with Yosys (UltraScale+), one or two minutes each"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure all combinations of settings.

    Measures one step of the kernel's first update rule, on all channels at once, for every
    combination of the axes' values. Results go to results.sqlite as they come; what is there is not
    measured again, so an interrupted sweep goes on where it was. At the end results.csv and plots
    are written. The exit status is 1 if a point failed or was not bit-exact.

    Keys are all options of the configuration (rules, lanes, block_bytes, queue_depth, refresh,
    t_rfc, bank_groups, ...; a wrong one is answered with a list), preset, count, stagger:
    whether the driver spreads the tensors over the banks, and formats of the tensors, with the
    preset axdimm_narrow: fp32, bf16_g, bf16_g_8bit, bf16_gp_8bit. Values are integers, such as
    4096, 1e6 or 4KiB, true or false, and names. In a file given with --config a list is an axis.
    """
    from sw_driver.experiments.sweep.grid import Grid
    from sw_driver.experiments.sweep.plots import write_plots
    from sw_driver.experiments.sweep.run import run_sweep
    from sw_driver.fpga.synthesis import find_yosys
    from sw_driver.simulator.buildcache import build_root
    from sw_driver.simulator.runtime import BuildError

    if options.resources:
        with turning(BuildError, into=Refusal):
            find_yosys()
    folder = options.out or build_root() / "sweep"
    try:
        grid = Grid.parse(
            backend=options.backend,
            config=options.config,
            counts=options.count,
            fixed=options.set,
            axes=options.axis,
            arithmetic=not options.no_arithmetic,
        )
        rows = run_sweep(
            grid,
            folder,
            jobs=options.jobs,
            cluster=options.dask,
            resources=options.resources,
            progress=progress_console(options),
        )
        plots = write_plots(folder, grid, rows)
    except BuildError as error:
        raise Failure(str(error)) from error
    except BrokenExecutor as error:
        raise Failure(
            "a process that measured a point died, or was killed for want of memory: what was done "
            f"before is in {str(folder)!r}, and the same command goes on; with --jobs 1 the first "
            "point that results.csv lacks is the one"
        ) from error
    except OSError as error:
        raise Refusal(f"cannot write the results to {str(folder)!r}: {error}") from error
    if options.json:
        print(json.dumps(rows, indent=2))
    elif not options.quiet:
        print_table(_table(grid, rows))
        for note in sorted({note for row in rows if (note := refresh_note(row))}):
            print_prose(note)
        print_files(options, [folder / "results.csv", folder / "results.sqlite", *plots])
    return _complain(grid, rows)


def _complain(grid: Grid, rows: list[dict[str, Any]]) -> int:
    """Says which points failed; returns the exit status."""
    status = 0
    for row in rows:
        what = None
        if row["error"]:
            what = f"failed: {row['error']}"
        elif row["bit_exact"] is False:
            what = "was not bit-exact: p, m or v differ from the golden model's"
        if what is not None:
            status = 1
            label = ", ".join(f"{name}={row[name]}" for name in grid.names)
            print(f"nearmem: the point {label} {what}", file=sys.stderr)
    return status


def _table(grid: Grid, rows: list[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    from sw_driver.axdimm.runs import DRAM_TIMES
    from sw_driver.experiments.settings import text_of
    from sw_driver.fpga.synthesis import RESOURCES

    fixed = ", ".join(f"{name} {text_of(name, value)}" for name, value in grid.fixed.items())
    table = Table(
        title=f"One step on the simulated AXDIMM ({grid.backend})",
        caption=f"{fixed}. MP/s: million parameters a second, and their share of the ceiling; "
        "then the shares of the DRAM's clocks in which it moves no data.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    names = {"row": "rows", "turn_around": "turns"}
    times = ("refresh", "row", "turn_around", "starved")
    # Rows of several ceilings have them, in the place of what seldom differs then.
    several = len({row["bytes_per_parameter"] for row in rows if not row["error"]}) > 1
    ceilings = ("bytes", "ceiling") if several else ()
    headings = (*grid.axes, *ceilings, "MP/s", "share", *(names.get(time, time) for time in times))
    for name in headings if several else (*headings, "on-chip KiB"):
        table.add_column(name, justify="right")
    resources = [name for name in RESOURCES if rows and name in rows[0]]
    for name in resources:
        table.add_column(name.replace("_", " "), justify="right")
    compared = any(row["bit_exact"] is not None for row in rows)
    if compared:
        table.add_column("bit-exact", justify="right")
    for row in rows:
        cells = [text_of(name, row[name]) for name in grid.axes]
        if row["error"]:
            table.add_row(*cells, "failed")
            continue
        total = sum(row[f"{time}_tck"] or 0 for time in DRAM_TIMES)
        table.add_row(
            *cells,
            *([f"{row['bytes_per_parameter']:.4g}"] if several else []),
            *([f"{row['ceiling_mparams_per_s']:.1f}"] if several else []),
            _text(row["mparams_per_s"], "{:.2f}"),
            _text(row["efficiency"], "{:.2%}"),
            *(_text(total and row[f"{time}_tck"] / total, "{:.1%}") for time in times),
            *([] if several else [f"{row['onchip_bytes'] / 1024:,.1f}"]),
            *(f"{row[name]:,}" for name in resources),
            *([{True: "yes", False: "NO", None: ""}[row["bit_exact"]]] if compared else []),
        )
    return table


def _text(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
