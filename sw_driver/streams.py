"""Streams: queues of operations that are carried out in their order, beside the caller."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .errors import ClosedError, InvalidHandleError, StreamFailedError
from .handles import Handle
from .timeorder import TimeOrder
from .transport import Transport
from .watchdog import Watchdog

__all__ = ["Stream", "Worker"]


class Worker:
    """A thread that carries out what it is given, one after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Not waited for when the program ends: a device that hangs must not keep it from that.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._started = False

    @property
    def is_current(self) -> bool:
        """Whether the caller is this worker."""
        return threading.current_thread() is self._thread

    def submit(self, job: Callable[[], None]) -> None:
        """Queues ``job``, which must not raise."""
        if not self._started:
            self._started = True
            self._thread.start()
        self._jobs.put(job)

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread after what is queued; False if it was not over in time."""
        self._jobs.put(None)
        if self._started and not self.is_current:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class Stream:
    """A queue of copies, mode switches and runs, carried out one after the other.

    An operation begins, in simulated time, when the one before it has ended and not before it was
    queued. When one fails, those behind it are not carried out: their handles raise
    :class:`~sw_driver.errors.StreamFailedError`, as does queueing more, until :meth:`recover`.

    Streams cannot deadlock: one can only wait for what was queued before. Made by
    :meth:`Axdimm.stream` and :meth:`Axdimm.new_stream`; any thread may use it.
    """

    def __init__(
        self,
        name: str,
        *,
        number: int,
        transport: Transport,
        watchdog: Watchdog,
        order: TimeOrder,
        closing: threading.Event,
        gate: threading.Event,
    ) -> None:
        self._name = name
        self._number = number
        self._order = order
        self._transport = transport
        self._watchdog = watchdog
        self._closing = closing
        self._gate = gate
        self._lock = threading.Lock()
        self._worker = Worker(f"nearmem-{name}")
        self._pending: list[tuple[Handle[Any], int | None]] = []
        """What is to be done, and for which channel."""
        self._failure: tuple[Handle[Any], BaseException] | None = None
        self._now = 0
        """Simulated time at which the last operation ended."""

    @property
    def name(self) -> str:
        """As it was named."""
        return self._name

    @property
    def queued(self) -> int:
        """Operations queued or in progress."""
        return len(self._pending)

    @property
    def pending(self) -> list[Handle[Any]]:
        """The operations queued or in progress, in their order."""
        with self._lock:
            return [handle for handle, _ in self._pending]

    @property
    def failure(self) -> BaseException | None:
        """What the first failed operation raised; None while the stream is sound."""
        return None if self._failure is None else self._failure[1]

    def recover(self) -> BaseException | None:
        """Forgets the failure, so that operations queued from now on are carried out."""
        with self._lock:
            failure, self._failure = self._failure, None
        return None if failure is None else failure[1]

    def wait(self, timeout: float | None = None) -> None:
        """Waits for all that is queued now.

        Raises the failure of the first operation that failed, see :meth:`recover`, and what
        :meth:`Handle.wait` raises.
        """
        pending = self.pending
        if pending:
            with suppress(StreamFailedError):
                pending[-1].wait(timeout)
        if self._failure is not None:
            raise self._failure[1]

    def wait_for(self, handle: Handle[Any]) -> Handle[None]:
        """Operations queued from now on begin after ``handle`` has ended; it may be another's.

        If it fails, so does the stream. Raises :class:`~sw_driver.errors.InvalidHandleError` for
        what is no handle of this device.
        """
        if not isinstance(handle, Handle) or not handle.belongs_to(self._watchdog):
            raise InvalidHandleError(
                f"{handle!r} is a {type(handle).__name__}: expected a handle that an operation of "
                "this device returned"
            )
        waiting: Handle[None] = Handle(
            f"stream {self._name}'s wait for {handle.what}",
            total=0,
            unit="bytes",
            transport=self._transport,
            watchdog=self._watchdog,
        )

        def wait() -> None:
            with self._order.blocked():
                handle.wait()

        self.submit(waiting, wait)
        return waiting

    # For the runtime.

    def submit(
        self, handle: Handle[Any], action: Callable[[], Any], channel: int | None = None
    ) -> None:
        """Queues ``action``, whose result or exception ends ``handle``.

        ``channel`` is the only one that it uses, if there is one.
        """
        with self._lock:
            if self._failure is not None:
                first, error = self._failure
                raise StreamFailedError(
                    f"stream {self._name} failed with {first.what} ({error}): {handle.what} was "
                    "not queued; recover() forgets the failure",
                    stream=self._name,
                    failed=first.what,
                ) from error
            self._pending.append((handle, channel))
            queued_at = self._transport.host_time()
            self._order.enter(self._number, channel, max(self._now, queued_at))
            self._worker.submit(lambda: self._carry_out(handle, action, queued_at))

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread; what was queued ends with :class:`ClosedError`. False if it hangs."""
        return self._worker.stop(timeout_s)

    @property
    def is_current(self) -> bool:
        """Whether the caller is the stream's own thread."""
        return self._worker.is_current

    def _carry_out(self, handle: Handle[Any], action: Callable[[], Any], queued_at: int) -> None:
        outcome: Any
        self._order.adopt(self._number)
        self._gate.wait()
        failure = self._failure
        if self._closing.is_set():
            outcome = ClosedError(f"the device was closed before {handle.what} began")
        elif failure is not None:
            first, error = failure
            outcome = StreamFailedError(
                f"{handle.what} was not carried out: {first.what}, before it in stream "
                f"{self._name}, failed: {error}",
                stream=self._name,
                failed=first.what,
            )
            outcome.__cause__ = error
        else:
            self._transport.set_host_time(max(self._now, queued_at))
            self._order.reach(self._transport.host_time())
            handle.start()
            try:
                outcome = action()
            except BaseException as error:  # goes to whoever waits
                outcome = error
            self._now = self._transport.host_time()
        with self._lock:
            if isinstance(outcome, BaseException) and failure is None:
                self._failure = (handle, outcome)
            handle.settle(outcome)
            self._pending.pop(0)
            self._order.reach(self._now)
            if self._pending:
                self._order.turn_to(self._pending[0][1])
            else:
                self._order.leave(self._number)
        with self._order.blocked():
            handle.notify()

    def __repr__(self) -> str:
        state = "failed" if self._failure else f"{self.queued} operations"
        return f"<Stream {self._name}: {state}>"
