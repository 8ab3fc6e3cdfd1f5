"""Where the points of a sweep are measured: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from sw_driver.experiments.settings import SweepError

from . import measure
from .grid import Point, sources_key

__all__ = ["DaskCluster", "Processes"]

CONNECT_SECONDS = 10

Figures = dict[str, Any]
Outcomes = Generator[tuple[str, Figures], None, None]
"""The figures of all points, by their keys, as they come. What is under way when the generator is
closed, or an exception passes through it, is given up."""


def _work(points: Connection) -> None:
    """What a worker does: it measures what it is sent, until it is ended.

    With the compilers that it starts it has a session of its own, so that they end together: when
    the parent says so, or by themselves when it is gone.
    """
    with suppress(OSError):
        os.setsid()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    while True:
        points.send(measure.measure_point(points.recv()))


class _Worker:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, others = context.Pipe()
        self._process = context.Process(target=_work, args=(others,), daemon=True)
        self._process.start()
        others.close()

    def end(self) -> None:
        """Ends it at once, with what it started."""
        assert self._process.pid is not None
        # One that has just begun has no session of its own yet.
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(self._process.pid, signal.SIGKILL)
        self._process.join()


class Processes:
    """``jobs`` processes of this machine, each measuring a point at a time.

    A process that dies (killed, out of memory, a crash in compiled code) costs its point alone.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, points: Mapping[str, Point]) -> Outcomes:
        """Measures the points."""
        waiting = list(points.items())[::-1]
        running: dict[Any, tuple[_Worker, str]] = {}

        with ExitStack() as stack:

            def hire() -> _Worker:
                worker = _Worker()
                stack.callback(worker.end)
                return worker

            def begin(worker: _Worker) -> None:
                key, point = waiting.pop()
                running[worker.pipe] = worker, key
                with suppress(OSError):  # of one that has died, as its end of the pipe will tell
                    worker.pipe.send(point)

            while waiting and len(running) < self._jobs:
                begin(hire())
            while running:
                for pipe in wait(list(running)):
                    worker, key = running.pop(pipe)
                    try:
                        figures = worker.pipe.recv()
                    except (EOFError, OSError):
                        figures = measure.failed("the process that measured it died, or was killed")
                        worker = None
                    if waiting:
                        begin(worker or hire())
                    yield key, figures


def _measure_same_sources(point: Point, expected: str) -> Figures:
    if sources_key(point.backend) != expected:
        raise RuntimeError(
            "the cluster's worker has other sources of nearmem than the machine that asks: install "
            "the same version on both"
        )
    return measure.measure_point(point)


class DaskCluster:
    """The workers of a Dask scheduler, which need the same version of this package.

    A worker measures as many points at a time as it has threads. Simulators are built, and
    kept, where the worker runs. Raises :class:`SweepError` if ``distributed`` is not installed or
    the scheduler does not answer.
    """

    def __init__(self, address: str) -> None:
        try:
            self._distributed: Any = importlib.import_module("distributed")
        except ImportError as error:
            raise SweepError(
                f"a sweep on the cluster {address!r} needs the package 'distributed', which is not "
                "installed: pip install -e '.[cluster]'"
            ) from error
        try:
            self._client: Any = self._distributed.Client(
                address, timeout=CONNECT_SECONDS, set_as_default=False
            )
        except (OSError, ValueError, TypeError) as error:
            raise SweepError(
                f"no Dask scheduler answers at {address!r} within {CONNECT_SECONDS} s: expected "
                "an address such as tcp://host:8786, which 'dask scheduler' prints"
            ) from error

    @property
    def workers(self) -> int:
        """Workers that the scheduler has now."""
        return len(self._client.scheduler_info(n_workers=-1)["workers"])

    def run(self, points: Mapping[str, Point]) -> Outcomes:
        """Measures the points, once: then the cluster is left."""
        keys = {
            self._client.submit(
                _measure_same_sources, point, sources_key(point.backend), pure=False
            ): key
            for key, point in points.items()
        }
        try:
            for future in self._distributed.as_completed(list(keys), loop=self._client.loop):
                error = future.exception()
                if error is None:
                    figures = future.result()
                else:
                    figures = measure.failed(f"{type(error).__name__}: {error}")
                future.release()
                yield keys[future], figures
        finally:
            self._client.cancel(list(keys))
            self._client.close()
