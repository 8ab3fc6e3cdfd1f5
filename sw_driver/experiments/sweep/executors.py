"""Workers for the points of a sweep: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future, as_completed
from contextlib import contextmanager
from typing import Any

from sw_driver.device.errors import InvalidArgumentError

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
    """Connect to a Dask scheduler; its workers need the same version of this package.

    A worker measures one point per thread at a time, and builds and keeps simulators on its own
    machine. Raise :class:`InvalidArgumentError` if ``distributed`` is not installed or the
    scheduler does not answer.
    """
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise InvalidArgumentError(
            f"a sweep on the cluster {address!r} needs the package 'distributed', which is not "
            "installed: pip install -e '.[cluster]'"
        ) from error
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"no Dask scheduler answers at {address!r} within {CONNECT_SECONDS} s: expected "
            "an address such as tcp://host:8786, which 'dask scheduler' prints"
        ) from error
    with client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            announce("the cluster has no workers yet: waiting for them")
        executor = client.get_executor(pure=False)
        try:
            yield lambda point: executor.submit(
                _measure_same_sources, point, sources_key(point.backend)
            )
        finally:
            executor.shutdown(wait=False)


def _measure_same_sources(point: Point, expected: str) -> Figures:
    if sources_key(point.backend) != expected:
        raise RuntimeError(
            "the cluster's worker has other sources of nearmem than this machine: install the same "
            "version on both"
        )
    return measure.measure_point(point)
