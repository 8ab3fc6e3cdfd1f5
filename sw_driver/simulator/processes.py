"""Ends what a build has started when the build is interrupted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["kill_started", "kill_tree"]


def kill_tree(pid: int) -> None:
    """Kills a process of ours and all that it has started: `make` dies without its compilers."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)  # or it would start more
        for child in _children(pid, pid):
            kill_tree(child)
        os.kill(pid, signal.SIGKILL)


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
