"""Where the points of a sweep are measured: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any, Protocol

from sw_driver.experiments.settings import SweepError

from .grid import Point, sources_key

__all__ = ["DaskCluster", "Executor", "Processes"]

CONNECT_SECONDS = 10

Figures = dict[str, Any]


Outcome = tuple[str, Figures]


class Executor(Protocol):
    """Measures points."""

    def run(self, points: Mapping[str, Point]) -> Generator[Outcome, None, None]:
        """The figures of all points, by their keys, as they come.

        What is under way when the generator is closed, or an exception passes through it, is
        given up.
        """
        ...

    def close(self) -> None:
        """Releases what the executor holds."""
        ...


def _measure(point: Point) -> Figures:
    # Numpy and the driver take their time to load, and who only describes a sweep needs neither.
    from .measure import measure_point

    return measure_point(point)


def _lost(reason: str) -> Figures:
    from .measure import failed

    return failed(reason)


def _end_with_parent() -> None:
    """Gives a worker, with the compilers that it starts, a session of its own, so that they end
    together: when the parent says so, or by themselves when it is gone."""
    with suppress(OSError):
        os.setsid()
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


class Processes:
    """``jobs`` processes of this machine, each measuring a point at a time.

    A process that dies (killed, out of memory, a crash in compiled code) takes its pool with it;
    the points that were under way are then measured again, each alone, to find out whose fault it
    was.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, points: Mapping[str, Point]) -> Generator[Outcome, None, None]:
        """See :class:`Executor`."""
        waiting = dict(points)
        while waiting:
            suspects = yield from self._pool(waiting, self._jobs)
            for key in suspects:
                if (yield from self._pool({key: points[key]}, 1)):
                    yield key, _lost("the process that measured it died, or was killed")

    def close(self) -> None:
        """See :class:`Executor`."""

    def _pool(self, waiting: dict[str, Point], jobs: int) -> Generator[Outcome, None, list[str]]:
        """Measures what is ``waiting``, and takes it from there, until nothing is or a process
        dies; returns the keys of what was under way then."""
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(
            min(jobs, len(waiting)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_end_with_parent,
        )
        running: dict[Future[Figures], str] = {}
        finished = False
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    key = next(iter(waiting))
                    running[pool.submit(_measure, waiting[key])] = key
                    del waiting[key]
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    figures = future.result()
                    yield running.pop(future), figures
            finished = True
        except BrokenProcessPool:
            # What was done by then is not lost.
            for future in [each for each in running if _is_well(each)]:
                yield running.pop(future), future.result()
        finally:
            if not finished:
                for child in set(multiprocessing.active_children()) - others:
                    _end(child.pid)
            pool.shutdown(cancel_futures=True)
        return list(running.values())


def _is_well(future: Future[Figures]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _end(worker: int | None) -> None:
    if worker is None:
        return
    # A worker that has not come to its initializer is no group yet.
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(worker, signal.SIGKILL)


def _measure_same_sources(point: Point, expected: str) -> Figures:
    if sources_key() != expected:
        raise RuntimeError(
            "the cluster's worker has other sources of nearmem than the machine that asks: install "
            "the same version on both"
        )
    return _measure(point)


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

    def run(self, points: Mapping[str, Point]) -> Generator[Outcome, None, None]:
        """See :class:`Executor`."""
        keys = {
            self._client.submit(_measure_same_sources, point, sources_key(), pure=False): key
            for key, point in points.items()
        }
        try:
            for future in self._distributed.as_completed(list(keys), loop=self._client.loop):
                error = future.exception()
                if error is None:
                    figures = future.result()
                else:
                    figures = _lost(f"{type(error).__name__}: {error}")
                future.release()
                yield keys[future], figures
        finally:
            self._client.cancel(list(keys))

    def close(self) -> None:
        """See :class:`Executor`."""
        self._client.close()
