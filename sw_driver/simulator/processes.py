"""Ends what a build has started when the build is interrupted."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["children", "kill_children", "kill_started", "kill_tree"]


def kill_tree(pid: int) -> None:
    """Kills a process of ours and all that it has started: `make` dies without its compilers."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)  # or it would start more
        for child in _children(pid, pid):
            kill_tree(child)
        os.kill(pid, signal.SIGKILL)


def children() -> set[int]:
    """Return the processes that this one has started, by all of its threads."""
    threads = [int(path.name) for path in Path("/proc/self/task").glob("*")]
    return set().union(*(_children(os.getpid(), thread) for thread in threads))


def kill_children(before: set[int]) -> None:
    """Kill what this process has started since ``before``, its :func:`children` then, with all that
    those have started.

    ``multiprocessing`` ends its resource tracker itself, and would start another in its place.
    """
    tracker: Any = sys.modules.get("multiprocessing.resource_tracker")
    spared = set() if tracker is None else {tracker._resource_tracker._pid}
    for child in children() - before - spared:
        kill_tree(child)


@contextmanager
def kill_started() -> Iterator[None]:
    """On an exception, such as Ctrl-C, kills the processes that this thread has started within."""
    thread = threading.get_native_id()
    before = _children(os.getpid(), thread)
    try:
        yield
    except BaseException:
        for child in _children(os.getpid(), thread) - before:
            kill_tree(child)
        raise


def _children(pid: int, thread: int) -> set[int]:
    """What a thread of a process has started; nothing where there is no such account."""
    with suppress(OSError):
        return {*map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())}
    return set()
