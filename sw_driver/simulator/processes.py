"""Termination of processes that an interrupted build has started."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["STARTS_WITHIN_S", "children", "kill_children", "kill_started", "kill_tree"]

STARTS_WITHIN_S = 1.0
"""Time in which a child that was just made gets its program; what was only forked never does."""


def kill_tree(pid: int) -> None:
    """Kill a child process and all its descendants; `make` alone would leave its compilers."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)  # keeps it from starting more
        for child in _children(pid, pid):
            kill_tree(child)
        os.kill(pid, signal.SIGKILL)


def children() -> set[int]:
    """Return the child processes of all threads of this process."""
    threads = [int(path.name) for path in Path("/proc/self/task").glob("*")]
    return set().union(*(_children(os.getpid(), thread) for thread in threads))


def kill_children(before: set[int]) -> None:
    """Kill the child processes that are not in ``before``, with their descendants.

    ``before`` is an earlier result of :func:`children`. The resource tracker of ``multiprocessing``
    stays: it ends by itself, and another would be started in its place.
    """
    until = time.monotonic() + STARTS_WITHIN_S
    for child in children() - before:
        if not _is_tracker(child, until):
            kill_tree(child)


def _is_tracker(pid: int, until: float) -> bool:
    """Return whether a child is a resource tracker, once it has its program or the time is up."""
    own = Path("/proc/self/cmdline").read_bytes()
    line = b""
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        while line in (b"", own) and time.monotonic() < until:
            time.sleep(0.001)
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"multiprocessing.resource_tracker" in line


@contextmanager
def kill_started() -> Iterator[None]:
    """Kill the processes that this thread started in the block if it raises, as for Ctrl-C."""
    thread = threading.get_native_id()
    before = _children(os.getpid(), thread)
    try:
        yield
    except BaseException:
        for child in _children(os.getpid(), thread) - before:
            kill_tree(child)
        raise


def _children(pid: int, thread: int) -> set[int]:
    """Return the children of a thread of a process; empty where /proc has no list of them."""
    with suppress(OSError):
        return {*map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())}
    return set()
