"""Handles: what every copy, mode switch and run returns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..device.errors import ClosedError, InvalidArgumentError, WaitTimeoutError
from .context import Context
from .gate import Block
from .watchdog import Patience

__all__ = ["Handle", "Progress", "check_timeout"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an operation got."""

    done: int
    total: int
    unit: str
    """Unit of the progress: ``bytes`` or ``parameters``."""

    @property
    def fraction(self) -> float:
        """Share of the operation that is done, from 0 to 1."""
        return self.done / self.total if self.total else 1.0


class Handle(Generic[T]):
    """An operation that is queued, in progress or over. Any thread may wait or ask.

    It can be awaited in asyncio: ``result = await handle``. To stop awaiting does not stop the
    operation.
    """

    def __init__(
        self,
        what: str,
        context: Context,
        *,
        total: int,
        unit: str,
        cleanup: Callable[[], None] | None = None,
    ) -> None:
        self.what = what
        """The operation in words."""
        self._context = context
        self._cleanup = cleanup
        self.held_by: Block | None = None
        """What has to end before the operation, or one that it comes behind, can begin."""
        self._settled = False
        self._trace: TracebackType | None = None
        self._total = total
        self._unit = unit
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._done_units = 0
        self._began: int | None = None
        self._ended: int | None = None
        self.result: T | None = None
        """What ``wait`` would return; None before the end and after a failure."""
        self.error: BaseException | None = None
        """What the operation has failed with, if it has."""

    # For those who wait.

    @property
    def done(self) -> bool:
        """Whether the operation has ended, well or not. Never blocks."""
        return self._over.is_set()

    @property
    def started(self) -> bool:
        """Whether the operation is in progress or over, rather than queued."""
        return self._began is not None

    @property
    def failed(self) -> bool:
        """Whether the operation has ended with an error."""
        return self.error is not None

    @property
    def began(self) -> int:
        """Simulated time of the beginning, in fabric cycles; 0 before, and if untimed."""
        return self._began or 0

    @property
    def ended(self) -> int:
        """Simulated time of the end, in fabric cycles; 0 before, and if untimed."""
        return self._ended or 0

    @property
    def progress(self) -> Progress:
        """How far the operation got. Never blocks and asks nobody."""
        return Progress(done=self._done_units, total=self._total, unit=self._unit)

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the end and returns the result; the caller's simulated time is then the end's.

        Raises what ended the operation otherwise;
        :class:`~sw_driver.device.errors.WaitTimeoutError` when it goes on after ``timeout`` seconds
        of host time (it can then be waited for again);
        :class:`~sw_driver.device.errors.DeviceTimeoutError`, with the device's state, when nothing
        at all gets on for as long as the device's ``stall_timeout_s``; and
        :class:`~sw_driver.device.errors.QueueingError` inside the ``queueing()`` that it waits for.
        """
        check_timeout(timeout)
        self._check_wait()
        if not self._context.watchdog.wait(self._over, f"the end of {self.what}", timeout):
            progress = self.progress
            raise WaitTimeoutError(
                f"{self.what} is still in progress after {timeout} s ({progress.done} of "
                f"{progress.total} {progress.unit} done); it goes on",
                timeout_s=timeout,
                done=progress.done,
                total=progress.total,
                unit=progress.unit,
            )
        self.await_end()
        if self.error is not None:
            # Or it would grow with each who waits.
            raise self.error.with_traceback(self._trace)
        return self.result  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        self._check_wait()
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not over.done():
                over.set_result(None)

        def tell() -> None:
            with suppress(RuntimeError):  # the loop was closed; nobody awaits any more
                loop.call_soon_threadsafe(resolve)

        patience = Patience(self._context.watchdog, f"the end of {self.what}")
        self.add_done_callback(tell)
        try:
            while not self.done:
                await asyncio.wait({over}, timeout=patience.step_s)
                if not self.done:
                    patience.check()
        finally:
            self.remove_done_callback(tell)
        return self.wait(0)

    def _check_wait(self) -> None:
        self._context.watchdog.check_process()
        self._context.gate.check_wait(self.held_by, self.what)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` at the end, in a thread for callbacks; at once if it is over."""
        with self._lock:
            if not self._over.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def remove_done_callback(self, callback: Callable[[], None]) -> None:
        """``callback`` is not called any more, unless it is just being."""
        with self._lock, suppress(ValueError):
            self._callbacks.remove(callback)

    # For the runtime.

    def await_end(self) -> None:
        """Waits for the end, good or bad; the caller's simulated time is then the end's."""
        self._context.watchdog.wait(self._over, f"the end of {self.what}")
        self._context.transport.set_host_time(
            max(self._context.transport.host_time(), self._ended or 0)
        )

    def start(self) -> None:
        """The operation begins, at the calling thread's simulated time."""
        if self._began is None:
            self._began = self._context.transport.host_time()

    def advance(self, units: int) -> None:
        """``units`` more are done."""
        self.reach(self._done_units + units)

    def reach(self, units: int) -> None:
        """So many units are done."""
        if units > self._done_units:
            self._done_units = min(units, self._total)
            self._context.watchdog.beat()

    def belongs_to(self, context: Context) -> bool:
        """Whether this is a handle of the device of that context."""
        return self._context is context

    def finish(self, outcome: T | BaseException) -> None:
        """Ends the operation, at the calling thread's simulated time; only the first call does."""
        with self._lock:
            if self._settled:
                return
            self._settled = True
        try:
            if self._cleanup is not None:
                self._cleanup()
        finally:
            self.start()
            if isinstance(outcome, BaseException):
                self.error = outcome
                self._trace = outcome.__traceback__
            else:
                self.result = outcome
                self._done_units = self._total
            self._ended = self._context.transport.host_time()
            self._context.watchdog.beat()
            with self._lock:
                self._over.set()
                callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                with suppress(ClosedError):  # nobody is told any more, but can still ask
                    self._context.notifier.submit(callback)

    def __repr__(self) -> str:
        if self.done:
            state = "failed" if self.error else "done"
        elif self.started:
            progress = self.progress
            state = f"{progress.done} of {progress.total} {progress.unit}"
        else:
            state = "queued"
        return f"<{type(self).__name__} of {self.what}: {state}>"


def check_timeout(timeout: Any) -> None:
    """Raises :class:`InvalidArgumentError` for what is no number of seconds from 0 on, nor None."""
    if timeout is not None and not (isinstance(timeout, int | float) and timeout >= 0):
        raise InvalidArgumentError(
            f"timeout is {timeout!r}: expected seconds, 0 or more, or None to wait for the end",
            timeout=timeout,
        )
