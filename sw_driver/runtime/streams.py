"""Streams: queues of operations that are carried out in their order, beside the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..device.errors import ClosedError, InvalidArgumentError, StreamFailedError
from .context import Context
from .gate import Block
from .handles import Handle, check_timeout
from .workers import Worker

__all__ = ["Stream"]


@dataclass(eq=False)
class _Entry:
    """An operation that is queued or in progress."""

    handle: Handle[Any]
    action: Callable[[], Any]
    channel: int | None
    queued_at: int
    """The caller's simulated time when the operation was queued, in fabric cycles."""
    first: bool = False
    """Whether the stream was idle when the operation was queued."""
    block: Block | None = None
    """What has to end before the operation begins, if it is the first."""
    doomed_by: tuple[Handle[Any], BaseException] | None = None
    """The handle before it that failed, and with what."""


class Stream:
    """A queue of copies, mode switches and runs, carried out one after the other.

    An operation begins, in simulated time, when the one before it has ended and not before it was
    queued. When one fails, those behind it are not carried out: their handles raise
    :class:`~sw_driver.device.errors.StreamFailedError`, as does queueing more, until
    :meth:`recover`.

    Streams cannot deadlock: one can only wait for what was queued before. Made by
    :meth:`Axdimm.stream` and :meth:`Axdimm.new_stream`; any thread may use it.
    """

    def __init__(self, name: str, number: int, context: Context) -> None:
        self.name = name
        self._number = number
        self._context = context
        self._lock = threading.RLock()
        self._worker = Worker(f"nearmem-{name}")
        self._pending: list[_Entry] = []
        self._failure: tuple[Handle[Any], BaseException] | None = None
        self._now = 0
        """Simulated time at which the stream's last operation ended, in fabric cycles."""

    @property
    def queued(self) -> int:
        """How many operations are queued or in progress."""
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
        self._context.watchdog.check_process()
        with self._lock:
            failure, self._failure = self._failure, None
        return None if failure is None else failure[1]

    def wait(self, timeout: float | None = None) -> None:
        """Waits for all that is queued now; the caller's simulated time is then the end's.

        Raises the failure of the first operation that failed, see :meth:`recover`, and what
        :meth:`Handle.wait` raises.
        """
        check_timeout(timeout)
        pending = self.pending
        if pending:
            with suppress(StreamFailedError):
                pending[-1].wait(timeout)
        else:
            transport = self._context.transport
            transport.set_host_time(max(transport.host_time(), self._now))
        failure = self.failure
        if failure is not None:
            raise failure

    def wait_for(self, handle: Handle[Any]) -> Handle[None]:
        """Operations queued from now on begin after ``handle`` has ended; it may be another's.

        If it fails, so does the stream. Raises
        :class:`~sw_driver.device.errors.InvalidArgumentError` for what is no handle of this device.
        """
        context = self._context
        context.check_open()
        if not isinstance(handle, Handle) or not handle.belongs_to(context):
            raise InvalidArgumentError(
                f"{handle!r} is a {type(handle).__name__}: expected a handle that an operation of "
                "this device returned"
            )
        waiting: Handle[None] = Handle(
            f"stream {self.name}'s wait for {handle.what}", context, total=0, unit="bytes"
        )

        def wait() -> None:
            with context.order.blocked(on=handle):
                handle.wait()

        waiting.held_by = handle.held_by
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
        entry = _Entry(handle, action, channel, self._context.transport.host_time())
        try:
            self._worker.start()
            with self._lock:
                self._check_sound(handle)
                entry.first = not self._pending
                self._pending.append(entry)
                entry.block = self._context.gate.note(
                    partial(self._enter, entry) if entry.first else None
                )
                before = entry.block if entry.first else self._pending[-2].handle.held_by
                if before is not None and not before.over.is_set():
                    handle.held_by = before
                self._worker.submit(lambda: self._carry_out(entry))
        except BaseException as error:
            # Ctrl-C may come anywhere.
            with self._lock:
                if handle.started:
                    raise
                self._remove(entry)
            handle.finish(error)
            raise

    def _enter(self, entry: _Entry) -> None:
        """From now on others wait for the stream, whose first operation is ``entry``."""
        if entry in self._pending:
            start = max(self._now, entry.queued_at)
            self._context.order.enter(self._number, entry.channel, start)

    def _check_sound(self, handle: Handle[Any]) -> None:
        if self._context.closing.is_set():
            raise ClosedError("the device was closed: open it again")
        if self._failure is not None:
            first, error = self._failure
            raise StreamFailedError(
                f"stream {self.name} failed with {first.what} ({error}): {handle.what} was "
                "not queued; recover() forgets the failure",
                stream=self.name,
                failed=first.what,
            ) from error

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread; what was queued ends with :class:`ClosedError`. False if it hangs."""
        with self._lock:
            pass  # whoever is queueing sees that the device closes, or is done
        return self._worker.stop(timeout_s)

    def _carry_out(self, entry: _Entry) -> None:
        context, handle = self._context, entry.handle
        context.order.adopt(self._number)
        if entry.first:
            context.gate.wait(entry.block)
        with self._lock:
            if entry not in self._pending:
                return
            refusal = self._refusal(entry)
            if refusal is None:
                context.transport.set_host_time(max(self._now, entry.queued_at))
                context.order.reach(context.transport.host_time())
                handle.start()
        outcome: Any = refusal
        if refusal is None:
            try:
                outcome = entry.action()
            except BaseException as error:  # goes to whoever waits
                outcome = error
            self._now = context.transport.host_time()
        with self._lock:
            if isinstance(outcome, BaseException) and refusal is None:
                self._failure = (handle, outcome)
                for each in self._pending:
                    each.doomed_by = self._failure
        context.order.over(handle, context.transport.host_time())
        handle.finish(outcome)
        with self._lock:
            self._remove(entry)

    def _refusal(self, entry: _Entry) -> BaseException | None:
        """Why the operation is not carried out."""
        if self._context.closing.is_set():
            return ClosedError(f"the device was closed before {entry.handle.what} began")
        if entry.doomed_by is None:
            return None
        first, error = entry.doomed_by
        refusal = StreamFailedError(
            f"{entry.handle.what} was not carried out: {first.what}, before it in stream "
            f"{self.name}, failed: {error}",
            stream=self.name,
            failed=first.what,
        )
        refusal.__cause__ = error
        return refusal

    def _remove(self, entry: _Entry) -> None:
        """The operation is over. For the owner of the lock."""
        with suppress(ValueError):
            self._pending.remove(entry)
        order = self._context.order
        if self._pending:
            order.reach(self._now)
            order.turn_to(self._number, self._pending[0].channel)
        else:
            order.leave(self._number)

    def __repr__(self) -> str:
        state = "failed" if self._failure else f"{self.queued} operations"
        return f"<Stream {self.name}: {state}>"
