"""Workers for the points of a sweep: processes of this machine, or a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future, as_completed
from contextlib import contextmanager
from typing import Any

from sw_driver.simulator.workers import connected

from . import measure
from .grid import Point, sources_key

__all__ = ["Submit", "dask_cluster", "outcomes"]

CONNECT_SECONDS = 10

Figures = dict[str, Any]
Submit = Callable[[Point], Future[Figures]]
"""Function that submits a point to a worker."""


def outcomes(submit: Submit, points: Mapping[str, Point]) -> Iterator[tuple[str, Figures]]:
    """Yield each point's key and figures as they arrive.

    Raise ``BrokenExecutor`` after the last result if a process died.
    """
    futures = {submit(point): key for key, point in points.items()}
    broken = None
    for future in as_completed(futures):
        error = future.exception()
        if isinstance(error, BrokenExecutor):
            broken = error
        elif error is not None:
            yield futures[future], measure.failed(f"{type(error).__name__}: {error}")
        else:
            yield futures[future], future.result()
    if broken is not None:
        raise broken


@contextmanager
def dask_cluster(address: str, announce: Callable[[str], None]) -> Iterator[Submit]:
    """Connect to a Dask scheduler as :func:`connected` does, to measure points.

    A worker measures one point per thread at a time, and builds and keeps simulators on its own
    machine.
    """
    with connected(address, announce, CONNECT_SECONDS) as submit:
        yield lambda point: submit(_measure_same_sources, point, sources_key(point.backend))


def _measure_same_sources(point: Point, expected: str) -> Figures:
    if sources_key(point.backend) != expected:
        raise RuntimeError(
            "the cluster's worker has other sources of nearmem than this machine: install the same "
            "version on both"
        )
    return measure.measure_point(point)
