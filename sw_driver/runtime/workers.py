"""Threads that carry out what they are given."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable

from ..device.errors import ClosedError

__all__ = ["Worker"]


class Worker:
    """A thread that carries out jobs, one after the other. Any thread may give it some.

    What a job raises is reported as of a thread that ends with it; the worker goes on.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Not waited for when the program ends: a device that hangs must not keep it from that.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._lock = threading.Lock()
        self._started = False
        self._stopping = False

    @property
    def is_current(self) -> bool:
        """Whether the caller is this worker."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Starts the thread unless it is; raises what the system raises if it cannot."""
        with self._lock:
            if self._started:
                return
            try:
                self._thread.start()
            except RuntimeError:
                # Ctrl-C may have come when it had just been started.
                if self._thread.ident is None:
                    raise
            self._started = True

    def submit(self, job: Callable[[], None]) -> None:
        """Queues ``job``. Raises :class:`ClosedError` after :meth:`stop`."""
        self.start()
        with self._lock:
            if self._stopping:
                raise ClosedError("the device was closed: open it again")
            self._jobs.put(job)

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread after what is queued; False if it was not over in time.

        May be called again. The worker itself is not waited for: it ends after the job it is at.
        """
        with self._lock:
            if not self._stopping:
                self._stopping = True
                self._jobs.put(None)
            if not self._started or self.is_current:
                return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:
                kind, error, trace = sys.exc_info()
                threading.excepthook(
                    threading.ExceptHookArgs((kind, error, trace, threading.current_thread()))
                )
                del kind, error, trace
            del job  # or what it needs would be kept until the next
