"""Streams: queues of operations that are carried out in their order, beside the caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import ClosedError, InvalidHandleError, StreamFailedError
from ..transport import Transport
from .handles import Handle
from .timeorder import TimeOrder
from .watchdog import Watchdog
from .workers import Worker

__all__ = ["Gate", "Stream", "StreamEnvironment"]

PAUSE_S = 0.05
"""Without another operation queued, a program has queued what it queues at once."""
LONGEST_PAUSE_S = 0.5


class Gate:
    """Lets streams that were idle begin when the program has queued what it queues at once.

    It has when it waits for something, or does nothing for a moment. Otherwise it would depend on
    the host whether the first operation is over before the next is queued, and with that who is
    first at the link.
    """

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._waits = threading.Event()
        self._queued_at = 0.0

    def close(self) -> None:
        """Nothing begins until :meth:`open`."""
        self._open.clear()

    def open(self) -> None:
        """What has been queued begins."""
        self._waits.set()
        self._open.set()

    def note(self) -> None:
        """An operation was queued."""
        self._queued_at = time.monotonic()
        self._waits.clear()

    def program_waits(self) -> None:
        """The program waits for something: it queues nothing else before."""
        self._waits.set()

    def wait(self) -> None:
        """Waits until the gate is open and the program has queued what it queues at once."""
        self._open.wait()
        limit = time.monotonic() + LONGEST_PAUSE_S
        while True:
            pause = min(self._queued_at + PAUSE_S, limit) - time.monotonic()
            if pause <= 0 or self._waits.wait(pause):
                return


@dataclass(frozen=True, kw_only=True)
class StreamEnvironment:
    """What the streams of a device have in common."""

    transport: Transport
    watchdog: Watchdog
    order: TimeOrder
    notifier: Worker
    closing: threading.Event
    """Set when the device closes."""
    gate: Gate
    """Opens when what is to be queued together is."""
    check_open: Callable[[], None]
    """Raises :class:`~sw_driver.errors.ClosedError` if the device cannot be used any more."""


@dataclass(eq=False)
class _Entry:
    """An operation that is queued or in progress."""

    handle: Handle[Any]
    action: Callable[[], Any]
    channel: int | None
    queued_at: int
    """The caller's simulated time."""
    first: bool = False
    """The stream was idle when it was queued."""
    doomed_by: tuple[Handle[Any], BaseException] | None = None
    """What failed before it."""


class Stream:
    """A queue of copies, mode switches and runs, carried out one after the other.

    An operation begins, in simulated time, when the one before it has ended and not before it was
    queued. When one fails, those behind it are not carried out: their handles raise
    :class:`~sw_driver.errors.StreamFailedError`, as does queueing more, until :meth:`recover`.

    Streams cannot deadlock: one can only wait for what was queued before. Made by
    :meth:`Axdimm.stream` and :meth:`Axdimm.new_stream`; any thread may use it.
    """

    def __init__(self, name: str, number: int, environment: StreamEnvironment) -> None:
        self._name = name
        self._number = number
        self._environment = environment
        self._lock = threading.RLock()
        self._worker = Worker(f"nearmem-{name}")
        self._pending: list[_Entry] = []
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
        return [entry.handle for entry in list(self._pending)]

    @property
    def failure(self) -> BaseException | None:
        """What the first failed operation raised; None while the stream is sound."""
        failure = self._failure
        return None if failure is None else failure[1]

    def recover(self) -> BaseException | None:
        """Forgets the failure, so that operations queued from now on are carried out."""
        self._environment.watchdog.check_process()
        with self._lock:
            failure, self._failure = self._failure, None
        return None if failure is None else failure[1]

    def wait(self, timeout: float | None = None) -> None:
        """Waits for all that is queued now; the caller's simulated time is then the end's.

        Raises the failure of the first operation that failed, see :meth:`recover`, and what
        :meth:`Handle.wait` raises.
        """
        pending = self.pending
        if pending:
            with suppress(StreamFailedError):
                pending[-1].wait(timeout)
        else:
            transport = self._environment.transport
            transport.set_host_time(max(transport.host_time(), self._now))
        failure = self.failure
        if failure is not None:
            raise failure

    def wait_for(self, handle: Handle[Any]) -> Handle[None]:
        """Operations queued from now on begin after ``handle`` has ended; it may be another's.

        If it fails, so does the stream. Raises :class:`~sw_driver.errors.InvalidHandleError` for
        what is no handle of this device.
        """
        shared = self._environment
        shared.check_open()
        if not isinstance(handle, Handle) or not handle.belongs_to(shared.watchdog):
            raise InvalidHandleError(
                f"{handle!r} is a {type(handle).__name__}: expected a handle that an operation of "
                "this device returned"
            )
        waiting: Handle[None] = Handle(
            f"stream {self._name}'s wait for {handle.what}",
            total=0,
            unit="bytes",
            transport=shared.transport,
            watchdog=shared.watchdog,
            notifier=shared.notifier,
        )

        def wait() -> None:
            with shared.order.blocked(on=handle):
                handle.wait()

        self.submit(waiting, wait)
        return waiting

    # For the runtime.

    def submit(
        self, handle: Handle[Any], action: Callable[[], Any], channel: int | None = None
    ) -> None:
        """Queues ``action``, whose result or exception ends ``handle``.

        ``channel`` is the only one that it uses, if there is one. If this raises, the handle has
        ended.
        """
        entry = _Entry(handle, action, channel, self._environment.transport.host_time())
        try:
            self._worker.start()
            with self._lock:
                self._check_sound(handle)
                self._environment.gate.note()
                entry.first = not self._pending
                self._pending.append(entry)
                self._environment.order.enter(
                    self._number, channel, max(self._now, entry.queued_at)
                )
                self._worker.submit(lambda: self._carry_out(entry))
        except BaseException as error:
            # Ctrl-C may come anywhere.
            with self._lock:
                if handle.started:
                    raise
                self._remove(entry)
            handle.finish(error)
            raise

    def _check_sound(self, handle: Handle[Any]) -> None:
        if self._environment.closing.is_set():
            raise ClosedError("the device was closed: open it again")
        if self._failure is not None:
            first, error = self._failure
            raise StreamFailedError(
                f"stream {self._name} failed with {first.what} ({error}): {handle.what} was "
                "not queued; recover() forgets the failure",
                stream=self._name,
                failed=first.what,
            ) from error

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread; what was queued ends with :class:`ClosedError`. False if it hangs."""
        with self._lock:
            pass  # whoever is queueing sees that the device closes, or is done
        return self._worker.stop(timeout_s)

    def _carry_out(self, entry: _Entry) -> None:
        shared, handle = self._environment, entry.handle
        shared.order.adopt(self._number)
        if entry.first:
            shared.gate.wait()
        with self._lock:
            if entry not in self._pending:
                return
            refusal = self._refusal(entry)
            if refusal is None:
                shared.transport.set_host_time(max(self._now, entry.queued_at))
                shared.order.reach(shared.transport.host_time())
                handle.start()
        outcome: Any = refusal
        if refusal is None:
            try:
                outcome = entry.action()
            except BaseException as error:  # goes to whoever waits
                outcome = error
            self._now = shared.transport.host_time()
        with self._lock:
            if isinstance(outcome, BaseException) and refusal is None:
                self._failure = (handle, outcome)
                for each in self._pending:
                    each.doomed_by = self._failure
        shared.order.over(handle, shared.transport.host_time())
        handle.finish(outcome)
        with self._lock:
            self._remove(entry)

    def _refusal(self, entry: _Entry) -> BaseException | None:
        """Why the operation is not carried out."""
        if self._environment.closing.is_set():
            return ClosedError(f"the device was closed before {entry.handle.what} began")
        if entry.doomed_by is None:
            return None
        first, error = entry.doomed_by
        refusal = StreamFailedError(
            f"{entry.handle.what} was not carried out: {first.what}, before it in stream "
            f"{self._name}, failed: {error}",
            stream=self._name,
            failed=first.what,
        )
        refusal.__cause__ = error
        return refusal

    def _remove(self, entry: _Entry) -> None:
        """The operation is over. For the owner of the lock."""
        with suppress(ValueError):
            self._pending.remove(entry)
        order = self._environment.order
        if self._pending:
            order.reach(self._now)
            order.turn_to(self._number, self._pending[0].channel)
        else:
            order.leave(self._number)

    def __repr__(self) -> str:
        state = "failed" if self._failure else f"{self.queued} operations"
        return f"<Stream {self._name}: {state}>"
