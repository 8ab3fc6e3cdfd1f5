"""``nearmem sweep``: a grid of configurations, measured one by one."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Failure, Refusal, integer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sw_driver.experiments.sweep.executors import Executor
    from sw_driver.experiments.sweep.grid import Grid, Point
    from sw_driver.experiments.sweep.store import ResultStore

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "sweep",
        help="measure all combinations of settings",
        description="Measures one Adam step, on all channels at once, for every combination of the "
        "axes' values. Results go to results.jsonl as they come; what is there is not measured "
        "again, so an interrupted sweep goes on where it was. At the end results.csv and plots are "
        "written. The exit status is 1 if a point failed or was not bit-exact.",
        epilog="Keys are all options of the configuration (lanes, block_bytes, queue_depth, "
        "refresh, t_rfc, bank_groups, ...; a wrong one is answered with a list), preset, count, "
        "and stagger: whether the driver spreads the tensors over the banks. Values are integers, "
        "with KiB or MiB if wanted, true or false, and names.",
    )
    parser.add_argument(
        "--backend",
        choices=("rtl", "cycles"),
        default="rtl",
        help="what is measured: the Verilated RTL, or the model of its cycles (default: rtl)",
    )
    parser.add_argument(
        "--config", metavar="PRESET", help="configuration that is varied (default: the paper's)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of all points; may be given several times",
    )
    parser.add_argument(
        "--axis",
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        help="a setting to vary; may be given several times",
    )
    parser.add_argument("--count", metavar="N[,N...]", help="parameters of each channel")
    parser.add_argument(
        "--jobs",
        type=integer(1, 4096),
        metavar="J",
        help="points measured at a time (default: as many as the cores can work on)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where results go (default: build/sweep)"
    )
    parser.add_argument(
        "--dask", metavar="ADDRESS", help="measure on the cluster of this Dask scheduler"
    )
    parser.add_argument(
        "--no-arithmetic",
        dest="arithmetic",
        action="store_false",
        help="leave the arithmetic out of the RTL: the same cycles, much sooner, but nothing to "
        "compare with the golden model",
    )
    parser.add_argument(
        "--resources",
        action="store_true",
        help="synthesize each kernel with Yosys (UltraScale+), one or two minutes each",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--json", action="store_true", help="print the results, and only them")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures what is missing, writes and prints; returns the exit status."""
    from rich.console import Console

    from sw_driver.experiments.settings import SweepError
    from sw_driver.experiments.sweep.grid import Grid
    from sw_driver.experiments.sweep.store import ResultStore, write_csv
    from sw_driver.simulator.buildcache import build_root
    from sw_driver.simulator.synthesis import RESOURCES, SynthesisError, find_yosys

    if arguments.dask is not None and arguments.jobs is not None:
        raise Refusal(
            f"--jobs is {arguments.jobs}, but --dask is given too: how many points run at a time "
            "is up to the cluster's workers; give one of the two"
        )
    if arguments.resources:
        try:
            find_yosys()
        except SynthesisError as error:
            raise Refusal(str(error)) from error
    # What is no result goes to stderr, so that --json leaves stdout to the rows.
    progress = Console(stderr=True, quiet=arguments.quiet or arguments.json)
    folder = arguments.out if arguments.out is not None else build_root() / "sweep"
    try:
        grid = Grid.parse(
            backend=arguments.backend,
            preset=arguments.config,
            counts=arguments.count,
            fixed=arguments.set,
            axes=arguments.axis,
            arithmetic=arguments.arithmetic,
        )
        points = [(point.key(), point) for point in grid.points()]
        if arguments.dask is None:
            _check_host_memory(point for _, point in points)
        with ResultStore(folder) as store:
            if store.note is not None:
                print(f"nearmem: {store.note}", file=sys.stderr)
            # Two descriptions may be of one machine.
            missing = {key: point for key, point in points if store.find(key) is None}
            found = sum(key not in missing for key, _ in points)
            if found:
                progress.print(
                    f"{found} of {len(points)} points have been measured before, see {store.path}",
                    highlight=False,
                    soft_wrap=True,
                )
            with closing(_executor(arguments, missing, progress)) as executor:
                try:
                    if missing:
                        _measure(executor, missing, store, progress)
                finally:
                    rows = _rows(grid, points, store)
                    write_csv(folder / "results.csv", _columns(grid), rows)
            if arguments.resources:
                _add_resources(rows, [point for _, point in points], progress)
                write_csv(folder / "results.csv", [*_columns(grid), *RESOURCES], rows)
        return _report(arguments, grid, rows, folder)
    except SweepError as error:
        raise Refusal(str(error)) from error
    except OSError as error:
        raise Failure(f"cannot write the results to {str(folder)!r}: {error}") from error


def _check_host_memory(points: Iterable[Point]) -> None:
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for point in points:
        needed = point.host_bytes()
        if needed > present:
            raise Refusal(
                f"the point {point.label} needs about {needed / 1e9:.1f} GB of memory to be "
                f"simulated, this machine has {present / 1e9:.1f} GB: take a smaller count, or a "
                "cluster with --dask"
            )


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """A request to terminate ends the sweep as Ctrl-C does, with everything written."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # only the main thread handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _default_jobs(points: Iterable[Point]) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # The RTL's channels are threads of their own.
    threads = max(point.config().channels if point.backend == "rtl" else 1 for point in points)
    return max(1, (cores or 1) // threads)


def _executor(
    arguments: argparse.Namespace, points: Mapping[str, Point], progress: Console
) -> Executor:
    from sw_driver.experiments.sweep.executors import DaskCluster, Processes

    if not points:
        return Processes(1)
    if arguments.backend == "rtl":
        progress.print(
            "each configuration's simulator is built when it is first measured, about a minute",
            highlight=False,
            soft_wrap=True,
        )
    if arguments.dask is None:
        return Processes(arguments.jobs or _default_jobs(points.values()))
    cluster = DaskCluster(arguments.dask)
    if cluster.workers == 0:
        progress.print("the cluster has no workers yet: waiting for them", highlight=False)
    return cluster


def _measure(
    executor: Executor, points: Mapping[str, Point], store: ResultStore, progress: Console
) -> None:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with (
        _termination_interrupts(),
        Progress(
            TextColumn("point"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[last]}"),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=progress,
        ) as bar,
        closing(executor.run(points)) as outcomes,
    ):
        task = bar.add_task("", total=len(points), last="")
        for key, figures in outcomes:
            point = points[key]
            store.add(
                key,
                {"backend": point.backend, "arithmetic": point.arithmetic, **point.settings}
                | figures,
            )
            speed = figures["mparams_per_s"]
            last = "failed" if figures["error"] else "untimed"
            bar.update(task, advance=1, last=last if speed is None else f"last {speed:.1f} MP/s")


def _add_resources(rows: list[dict[str, Any]], points: list[Point], progress: Console) -> None:
    """Adds to each row what a channel's kernel takes on an FPGA."""
    from rich.progress import track

    from sw_driver.simulator.synthesis import SynthesisError, kernel_resources

    work = list(zip(rows, points, strict=True))
    for row, point in track(work, description="synthesizing", console=progress):
        try:
            row |= kernel_resources(point.config().kernel)
        except SynthesisError as error:
            raise Failure(str(error)) from error


def _columns(grid: Grid) -> list[str]:
    from sw_driver.experiments.sweep.measure import FIGURES

    return ["key", "backend", "arithmetic", *grid.names, *FIGURES]


def _rows(
    grid: Grid, points: Iterable[tuple[str, Point]], store: ResultStore
) -> list[dict[str, Any]]:
    """The grid's results so far. What was measured under another description of the same machine
    has the grid's."""
    columns = _columns(grid)
    rows = []
    for key, point in points:
        row = store.get(key)
        if row is not None:
            described = {**row, **point.settings}
            rows.append({name: described[name] for name in columns})
    return rows


def _report(
    arguments: argparse.Namespace, grid: Grid, rows: list[dict[str, Any]], folder: Path
) -> int:
    from rich.console import Console

    from sw_driver.experiments.sweep.plots import write_plots

    plots = write_plots(folder, grid, rows)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif not arguments.quiet:
        console = Console()
        table = _table(grid, rows)
        # What goes into a file is not squeezed into a screen.
        if not console.is_terminal:
            wide = console.options.update(width=10_000)
            console.width = max(console.width, console.measure(table, options=wide).maximum)
        console.print(table)
        console.print(
            f"Results: {folder / 'results.csv'}, {folder / 'results.jsonl'}",
            highlight=False,
            soft_wrap=True,
        )
        for plot in plots:
            console.print(f"Plot: {plot}", highlight=False, soft_wrap=True)
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
    from sw_driver.simulator.synthesis import RESOURCES

    fixed = ", ".join(f"{name} {text_of(name, value)}" for name, value in grid.fixed.items())
    table = Table(
        title=f"One Adam step on the simulated AXDIMM ({grid.backend})",
        caption=f"{fixed}. MP/s: million parameters a second, and their share of the ceiling; then "
        "the shares of the DRAM's clocks.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    names = {"row": "rows", "turn_around": "turns"}
    times = ("data", "refresh", "row", "turn_around", "starved")
    for name in (*grid.axes, "MP/s", "share", *(names.get(time, time) for time in times)):
        table.add_column(name, justify="right")
    resources = [name for name in RESOURCES if rows and name in rows[0]]
    table.add_column("on-chip KiB", justify="right")
    for name in resources:
        table.add_column(name.replace("_", " "), justify="right")
    table.add_column("bit-exact", justify="right")
    for row in rows:
        cells = [text_of(name, row[name]) for name in grid.axes]
        if row["error"]:
            table.add_row(*cells, "failed")
            continue
        total = sum(row[f"{time}_tck"] or 0 for time in DRAM_TIMES)
        table.add_row(
            *cells,
            _text(row["mparams_per_s"], "{:.2f}"),
            _text(row["efficiency"], "{:.2%}"),
            *(_text(total and row[f"{time}_tck"] / total, "{:.1%}") for time in times),
            f"{row['onchip_bytes'] / 1024:,.1f}",
            *(f"{row[name]:,}" for name in resources),
            {True: "yes", False: "NO", None: ""}[row["bit_exact"]],
        )
    return table


def _text(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
