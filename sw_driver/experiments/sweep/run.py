"""Runs a sweep: what is missing is measured, and everything is written."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sw_driver.axdimm.measure import FIGURES
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.experiments.settings import plain
from sw_driver.files import replacing
from sw_driver.simulator.workers import processes

from . import executors
from .grid import Grid, Point
from .measure import measure_point
from .store import ResultStore

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run_sweep"]


def run_sweep(
    grid: Grid,
    folder: Path,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    resources: bool = False,
    progress: Console,
) -> list[dict[str, Any]]:
    """The rows of the grid, in its order; ``results.csv`` has them, too, after an interruption
    those that were measured. Raises ``BrokenExecutor`` after the last that came, if a process died.

    Parameters
    ----------
    folder: holds the results; what is there is not measured again, unless it failed.
    jobs: points at a time, None for as many as the cores can work on.
    cluster: address of a Dask scheduler, whose workers measure instead.
    resources: adds what each kernel takes on an FPGA.
    progress: shows how it gets on.

    Raises
    ------
    InvalidArgumentError: the sweep cannot be made as asked for; nothing was measured.
    BuildError: a kernel was not synthesized.
    OSError: the table cannot be written.
    """
    points = [(point.key(), point) for point in grid.points()]
    if cluster is None:
        _check_host_memory(point for _, point in points)
    columns = ["key", "backend", "arithmetic", *grid.names, *FIGURES]
    rows: list[dict[str, Any]] = []
    with ResultStore(folder) as store:
        # Two descriptions may be of one machine.
        missing = {key: point for key, point in points if not _is_measured(store.get(key))}
        found = sum(key not in missing for key, _ in points)
        if found:
            progress.print(f"{found} of {len(points)} points have been measured before:")
            progress.print(f"  {store.path}", soft_wrap=True)
        try:
            if missing:
                with _workers(missing, jobs, cluster, progress) as submit:
                    _measure(submit, missing, store, progress)
        finally:
            for key, point in points:
                row = store.get(key)
                if row is not None:
                    # What was measured under another description of the machine gets this one.
                    described = {**row, **point.settings, "key": key}
                    rows.append({name: described[name] for name in columns})
            _write_csv(folder, columns, rows)
    if resources:
        _add_resources(rows, [point for _, point in points], progress)
        _write_csv(folder, list(rows[0]), rows)
    return rows


def _is_measured(row: Mapping[str, Any] | None) -> bool:
    return row is not None and not row["error"]


def _check_host_memory(points: Iterable[Point]) -> None:
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for point in points:
        needed = point.host_bytes()
        if needed > present:
            raise InvalidArgumentError(
                f"the point {point.label} needs about {needed / 1e9:.1f} GB of memory to be "
                f"simulated, this machine has {present / 1e9:.1f} GB: take a smaller count, or a "
                "cluster with --dask"
            )


def _default_jobs(points: Iterable[Point]) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # The RTL's channels are threads of their own.
    threads = max(point.config().channels if point.backend == "rtl" else 1 for point in points)
    return max(1, (cores or 1) // threads)


def _workers(
    points: Mapping[str, Point], jobs: int | None, cluster: str | None, progress: Console
) -> AbstractContextManager[executors.Submit]:
    if any(point.backend == "rtl" for point in points.values()):
        progress.print(
            "each configuration's simulator is built when it is first measured, about a minute"
        )
    if cluster is None:
        return processes(min(jobs or _default_jobs(points.values()), len(points)), measure_point)
    return executors.dask_cluster(cluster, progress.print)


def _measure(
    submit: executors.Submit, points: Mapping[str, Point], store: ResultStore, progress: Console
) -> None:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("point"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[last]}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=progress,
    ) as bar:
        task = bar.add_task("", total=len(points), last="")
        for key, figures in executors.outcomes(submit, points):
            point = points[key]
            asked = {"backend": point.backend, "arithmetic": point.arithmetic}
            store.add(key, {**asked, **point.settings, **figures})
            speed = figures["mparams_per_s"]
            last = "failed" if figures["error"] else "untimed"
            bar.update(task, advance=1, last=last if speed is None else f"last {speed:.1f} MP/s")


def _write_csv(folder: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Writes ``true`` and ``false`` as the options have them, and nothing for None."""
    with replacing(folder / "results.csv") as part, part.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(["" if row[name] is None else plain(row[name]) for name in columns])


def _add_resources(
    rows: Sequence[dict[str, Any]], points: Sequence[Point], progress: Console
) -> None:
    from rich.progress import track

    from sw_driver.fpga.synthesis import kernel_resources

    work = list(zip(rows, points, strict=True))
    for row, point in track(work, description="synthesizing", console=progress):
        row |= kernel_resources(point.config().kernel)
