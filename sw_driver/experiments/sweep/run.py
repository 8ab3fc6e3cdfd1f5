"""Run of a sweep: measure missing points, and write all results."""

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
    """Return the rows of the grid, in its order, and write them to ``results.csv``.

    After an interruption the file has the measured points. Raise ``BrokenExecutor`` after the last
    result if a process died.

    Parameters
    ----------
    folder: place of the results; a point with a result there is measured again only if it failed.
    jobs: points at a time; None: depends on the cores.
    cluster: address of a Dask scheduler with workers that measure instead.
    resources: True to add the FPGA resources of each kernel.
    watch: receiver of progress.

    Raises
    ------
    InvalidArgumentError: the sweep is impossible; nothing was measured.
    BuildError: synthesis of a kernel failed.
    OSError: the table cannot be written.
    """
    points = [(point.key(), point) for point in grid.points()]
    if cluster is None:
        _check_host_memory(point for _, point in points)
    columns = ["key", "backend", "arithmetic", *grid.names, *FIGURES]
    rows: list[dict[str, Any]] = []
    with ResultStore(folder) as store:
        # Two points may describe the same machine.
        missing = {key: point for key, point in points if not _is_measured(store.get(key))}
        known = sum(key not in missing for key, _ in points)
        if known:
            watch.log(f"{known} of {len(points)} points have been measured before:")
            watch.log(f"  {store.path}")
        try:
            if missing:
                with _workers(missing, jobs, cluster, watch) as submit:
                    _measure(submit, missing, store, watch)
        finally:
            for key, point in points:
                row = store.get(key)
                if row is not None:
                    # The result may come from another description of the machine: use this one.
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
                f"simulating the point {point.label} needs about {needed / 1e9:.1f} GB of memory, "
                f"but this machine has {present / 1e9:.1f} GB: take a smaller count, or a cluster "
                "with --dask"
            )


def _default_jobs(points: Iterable[Point]) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # In RTL each channel has its own thread.
    threads = max(point.config().channels if point.backend == "rtl" else 1 for point in points)
    return max(1, (cores or 1) // threads)


def _workers(
    points: Mapping[str, Point], jobs: int | None, cluster: str | None, watch: Watch
) -> AbstractContextManager[executors.Submit]:
    if any(point.backend == "rtl" for point in points.values()):
        watch.log(
            "the first measurement of a configuration builds its simulator, in about a minute"
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
        job = {"backend": point.backend, "arithmetic": point.arithmetic}
        store.add(key, {**job, **point.settings, **figures})
        speed = figures["mparams_per_s"]
        last = "failed" if figures["error"] else "untimed"
        watch.say(f"measuring points, last {last if speed is None else f'{speed:.1f} MP/s'}")


def _write_csv(folder: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Write the table, with ``true`` and ``false``, and an empty cell for None."""
    with replacing(folder / "results.csv") as part, part.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(["" if row[name] is None else plain(row[name]) for name in columns])


def _add_resources(rows: Sequence[dict[str, Any]], points: Sequence[Point], watch: Watch) -> None:
    from sw_driver.fpga.synthesis import kernel_resources

    pairs = list(zip(rows, points, strict=True))
    for row, point in watch.track(pairs, "synthesizing"):
        row |= kernel_resources(point.config().kernel)
