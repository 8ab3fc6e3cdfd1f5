"""Workers: processes on this machine that end with the program, or those of a Dask cluster."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from sw_driver.device.errors import InvalidArgumentError

__all__ = ["connected", "processes"]


@contextmanager
def processes(jobs: int, function: Callable[[Any], Any]) -> Iterator[Callable[[Any], Future[Any]]]:
    """Start ``jobs`` processes and yield a function that submits a call of ``function``.

    An exception in the block abandons the calls in progress.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin) as pool:
        try:
            yield partial(pool.submit, function)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                # A worker that has just begun has no session of its own yet.
                for kill in (os.killpg, os.kill):
                    with suppress(ProcessLookupError):
                        kill(worker.pid or 0, signal.SIGKILL)
            raise


@contextmanager
def connected(
    address: str, announce: Callable[[str], None], seconds: int = 10
) -> Iterator[Callable[..., Future[Any]]]:
    """Connect to a Dask scheduler, and yield a function that submits a call to its workers.

    They need the same version of this package. Raise :class:`InvalidArgumentError` if
    ``distributed`` is not installed or the scheduler does not answer.
    """
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise InvalidArgumentError(
            f"work on the cluster {address!r} needs the package 'distributed', which is not "
            "installed: pip install -e '.[cluster]'"
        ) from error
    try:
        client = distributed.Client(address, timeout=seconds, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"no Dask scheduler answers at {address!r} within {seconds} s: expected "
            "an address such as tcp://host:8786, which 'dask scheduler' prints"
        ) from error
    with client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            announce("the cluster has no workers yet: waiting for them")
        executor = client.get_executor(pure=False)
        try:
            yield executor.submit
        finally:
            executor.shutdown(wait=False)


def _begin() -> None:
    """Give a worker a session of its own, which includes the compilers that it starts.

    They end together when the pool ends, or by themselves when the program's process is gone.
    Ctrl-C in a terminal does not reach them.
    """
    with suppress(OSError):
        os.setsid()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end(*_: object) -> None:
        os.killpg(0, signal.SIGKILL)

    def watch() -> None:
        parent.join()
        end()

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=watch, daemon=True).start()
