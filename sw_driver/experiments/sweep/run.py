"""Runs a sweep: what is missing is measured, and everything is written."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sw_driver.axdimm.measure import FIGURES
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.experiments.settings import plain
from sw_driver.files import replacing
from sw_driver.report import Watch
from sw_driver.simulator.workers import processes

from . import executors
from .grid import Grid, Point
from .measure import measure_point
from .store import ResultStore

__all__ = ["run_sweep"]


def run_sweep(
    grid: Grid,
    folder: Path,
    *,
    jobs: int | None = None,
    cluster: str | None = None,
    resources: bool = False,
    watch: Watch = Watch(),
) -> list[dict[str, Any]]:
    """Return the rows of the grid, in its order; ``results.csv`` has them, too.

    After an interruption it has those that were measured. Raises ``BrokenExecutor`` after the last
    that came, if a process died.

    Parameters
    ----------
    folder: holds the results; what is there is not measured again, unless it failed.
    jobs: points at a time, None for as many as the cores can work on.
    cluster: address of a Dask scheduler, whose workers measure instead.
    resources: adds what each kernel takes on an FPGA.
    watch: shows how it gets on.

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
            watch.log(f"{found} of {len(points)} points have been measured before:")
            watch.log(f"  {store.path}")
        try:
            if missing:
                with _workers(missing, jobs, cluster, watch) as submit:
                    _measure(submit, missing, store, watch)
        finally:
            for key, point in points:
                row = store.get(key)
                if row is not None:
                    # What was measured under another description of the machine gets this one.
                    described = {**row, **point.settings, "key": key}
                    rows.append({name: described[name] for name in columns})
            _write_csv(folder, columns, rows)
    if resources:
        _add_resources(rows, [point for _, point in points], watch)
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
    points: Mapping[str, Point], jobs: int | None, cluster: str | None, watch: Watch
) -> AbstractContextManager[executors.Submit]:
    if any(point.backend == "rtl" for point in points.values()):
        watch.log(
            "each configuration's simulator is built when it is first measured, about a minute"
        )
    if cluster is None:
        return processes(min(jobs or _default_jobs(points.values()), len(points)), measure_point)
    return executors.dask_cluster(cluster, watch.log)


def _measure(
    submit: executors.Submit, points: Mapping[str, Point], store: ResultStore, watch: Watch
) -> None:
    outcomes = executors.outcomes(submit, points)
    for key, figures in watch.track(outcomes, "measuring points", len(points)):
        point = points[key]
        asked = {"backend": point.backend, "arithmetic": point.arithmetic}
        store.add(key, {**asked, **point.settings, **figures})
        speed = figures["mparams_per_s"]
        last = "failed" if figures["error"] else "untimed"
        watch.say(f"measuring points, last {last if speed is None else f'{speed:.1f} MP/s'}")


def _write_csv(folder: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Writes ``true`` and ``false`` as the options have them, and nothing for None."""
    with replacing(folder / "results.csv") as part, part.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(["" if row[name] is None else plain(row[name]) for name in columns])


def _add_resources(rows: Sequence[dict[str, Any]], points: Sequence[Point], watch: Watch) -> None:
    from sw_driver.fpga.synthesis import kernel_resources

    work = list(zip(rows, points, strict=True))
    for row, point in watch.track(work, "synthesizing"):
        row |= kernel_resources(point.config().kernel)
