"""Worker processes on this machine that end with the program."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

__all__ = ["processes"]


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
