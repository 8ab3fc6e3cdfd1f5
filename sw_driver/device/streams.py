"""Handles and streams: the result of every operation, and queues of operations.

Nothing here runs by itself; :mod:`sw_driver.device.clock` explains when operations make progress.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from .clock import Domain, Exclusive, Operation, Steps, finished
from .errors import ClosedError, InvalidArgumentError, StreamFailedError, WaitTimeoutError

__all__ = ["Handle", "Progress", "Stream", "check_timeout", "one_call", "perform", "whole_call"]

T = TypeVar("T")
P = ParamSpec("P")


class _Timed(Protocol):
    domain: Domain


D = TypeVar("D", bound=_Timed)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of an operation."""

    done: int
    total: int
    unit: str
    """Unit of ``done`` and ``total``: ``bytes`` or ``parameters``."""

    @property
    def fraction(self) -> float:
        """Completed share of the operation, from 0 to 1."""
        return self.done / self.total if self.total else 1.0


class Handle(Operation, Generic[T]):
    """An operation that is queued, in progress or over. Any thread may use it.

    Simulated time passes, and the operation progresses, only while a caller waits. In asyncio,
    ``result = await handle`` lets other tasks run once and then waits like :meth:`wait`.

    Parameters
    ----------
    label: the operation's name in messages.
    domain: the device's time.
    total, unit: total and unit of the progress.
    """

    def __init__(
        self,
        label: str,
        domain: Domain,
        *,
        total: int = 0,
        unit: str = "bytes",
    ) -> None:
        super().__init__(label, domain)
        self.stream: Stream | None = None
        """The stream in which the operation is queued, if any."""
        self._trace: TracebackType | None = None
        self._total = total
        self._unit = unit
        self._callbacks: list[Callable[[], None]] = []
        self._done_units = 0
        self._began: int | None = None
        self.result: T | None = None
        """Result of :meth:`wait`; None before the end and after a failure."""
        self.error: BaseException | None = None
        """Exception that ended the operation, if any."""

    # For callers that wait.

    @property
    def done(self) -> bool:
        """True once the operation has ended, successfully or not.

        A query takes the simulated time of a register read, so a polling loop ends.
        """
        clock = self.domain.clock
        if not self.over or self.time > clock.now:
            with clock:
                clock.ask(self.domain)
        return self.over and self.time <= clock.now

    @property
    def started(self) -> bool:
        """True once the operation has begun; does not advance the time."""
        return self._began is not None

    @property
    def failed(self) -> bool:
        """True if the operation has ended with an error; does not advance the time."""
        return self.error is not None

    @property
    def began(self) -> int:
        """Simulated time of the start, in the device's cycles; 0 before, and if untimed."""
        return self._began or 0 if self.domain.timed else 0

    @property
    def ended(self) -> int:
        """Simulated time of the end, in the device's cycles; 0 before, and if untimed."""
        return self.domain.cycles(self.time) if self.over and self.domain.timed else 0

    @property
    def progress(self) -> Progress:
        """Progress up to the present time."""
        return Progress(done=self._done_units, total=self._total, unit=self._unit)

    def wait(self, timeout: float | None = None) -> T:
        """Let time pass until the end, and return the result.

        The program's simulated time is then at least that of the end. Raises the operation's error;
        :class:`~sw_driver.device.errors.WaitTimeoutError` after ``timeout`` seconds of host time,
        after which another wait is possible; and
        :class:`~sw_driver.device.errors.DeadlockError` if the operation can never end.
        """
        check_timeout(timeout)
        began = time.monotonic()
        clock = self.domain.clock
        in_time = clock.enter(timeout)
        if in_time:
            try:
                left = None if timeout is None else timeout - (time.monotonic() - began)
                in_time = clock.run(self, left)
                if in_time:
                    clock.now = max(clock.now, self.time)
            finally:
                clock.leave()
        if not in_time:
            progress = self.progress
            raise WaitTimeoutError(
                f"{self.label} is not over after {timeout} s ({progress.done} of {progress.total} "
                f"{progress.unit} done); it goes on when it is waited for",
                timeout_s=timeout,
                done=progress.done,
                total=progress.total,
                unit=progress.unit,
            )
        return self.outcome()

    def outcome(self) -> T:
        """Return the result of an operation that is over, or raise its error."""
        if self.error is not None:
            # The stored traceback: otherwise it would grow with each wait.
            raise self.error.with_traceback(self._trace)
        return self.result  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, None, T]:
        yield from asyncio.sleep(0).__await__()
        return self.wait()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at the end, in the thread that waits; at once if it is over.

        The callback may queue operations, but not wait.
        """
        with self.domain.clock:
            if not self.over:
                self._callbacks.append(callback)
                return
        callback()

    def remove_done_callback(self, callback: Callable[[], None]) -> None:
        """Remove a callback, unless it is running."""
        with self.domain.clock, suppress(ValueError):
            self._callbacks.remove(callback)

    # For devices, which hold the clock's lock.

    def carry_out(self, steps: Steps) -> None:
        """Carry out the operation now, and advance the program's time to its end.

        Raises the operation's error.
        """
        self.domain.clock.perform(self, _begun(self, steps))
        if self.error is not None:
            raise self.error

    def start(self) -> None:
        """Mark the operation as begun, at its domain's time."""
        if self._began is None:
            self._began = self.domain.now

    def reach(self, units: int) -> None:
        """Set the progress to at least ``units``."""
        self._done_units = max(self._done_units, min(units, self._total))

    def finish(self, outcome: T | BaseException) -> None:
        """End the operation; later calls do nothing."""
        if self.over:
            return
        if self._began is None:
            self._began = self.domain.cycles(self.time)
        if isinstance(outcome, BaseException):
            self.error = outcome
            self._trace = outcome.__traceback__
        else:
            self.result = outcome
            self._done_units = self._total
        self.over = True
        for callback in self._callbacks:
            self.domain.clock.postpone(callback, self.time)
        self._callbacks.clear()
        if self.stream is not None:
            self.stream.ended(self)

    def __repr__(self) -> str:
        if self.over:
            state = "failed" if self.error else "done"
        elif self.started:
            progress = self.progress
            state = f"{progress.done} of {progress.total} {progress.unit}"
        else:
            state = "queued"
        return f"<{type(self).__name__} of {self.label}: {state}>"


class Stream:
    """A queue of operations, carried out one after the other.

    In simulated time, an operation begins once the one before it has ended, and not before it was
    queued. After a failure, the operations behind it are not carried out: their handles raise
    :class:`~sw_driver.device.errors.StreamFailedError`, as does queueing more, until
    :meth:`recover`.

    Streams cannot deadlock: a stream only waits for operations queued earlier. Any thread may use
    it.

    Examples
    --------
    >>> from nearmem import Axdimm
    >>> with Axdimm("cycles") as device:
    ...     stream, place = device.new_stream("copies"), device.MallocAxdimm(64, 0)
    ...     copies = [device.MemcpyHost2Axdimm(place, bytes(64), 64, stream=stream) for _ in "ab"]
    ...     stream.wait()
    ...     print(stream.queued, copies[1].began >= copies[0].ended)
    0 True
    """

    def __init__(self, name: str, domain: Domain) -> None:
        self.name = name
        self._domain = domain
        self._queue: deque[Handle[Any]] = deque()
        self._failure: tuple[Handle[Any], BaseException] | None = None
        self._free_at = 0
        """Tick of the end of the last operation."""
        self._closed = False

    @property
    def queued(self) -> int:
        """Number of operations queued or in progress; does not advance the time."""
        return len(self._queue)

    @property
    def pending(self) -> list[Handle[Any]]:
        """Operations queued or in progress, in order."""
        return list(self._queue)

    @property
    def failure(self) -> BaseException | None:
        """Error of the first failed operation; None while the stream is sound."""
        failure = self._failure
        return None if failure is None else failure[1]

    def recover(self) -> BaseException | None:
        """Clear the failure and return it; operations queued from now on are carried out."""
        with self._domain.clock:
            failure, self._failure = self._failure, None
        return None if failure is None else failure[1]

    def wait(self, timeout: float | None = None) -> None:
        """Let time pass until all operations queued so far are over.

        The program's simulated time is then at least that of the end. Raises the error of the first
        failed operation, see :meth:`recover`, and as :meth:`Handle.wait`.
        """
        check_timeout(timeout)
        pending = self.pending
        if pending:
            with suppress(StreamFailedError):
                pending[-1].wait(timeout)
        else:
            with self._domain.clock as clock:
                clock.now = max(clock.now, self._free_at)
        failure = self.failure
        if failure is not None:
            raise failure

    def wait_for(self, handle: Handle[Any]) -> Handle[None]:
        """Delay later operations of the stream until ``handle`` ends, also one of another stream.

        If it fails, so does the stream. Raises
        :class:`~sw_driver.device.errors.InvalidArgumentError` unless ``handle`` is of a device on
        the same clock.
        """
        if not isinstance(handle, Handle) or handle.domain.clock is not self._domain.clock:
            raise InvalidArgumentError(
                f"{handle!r} is a {type(handle).__name__}: expected a handle that an operation of "
                "this device returned, or of one on the same clock"
            )
        label = f"stream {self.name}'s wait for {handle.label}"
        waiting: Handle[None] = Handle(label, self._domain)

        def steps() -> Steps:
            yield handle
            handle.outcome()

        with self._domain.clock:
            self.submit(waiting, steps)
        return waiting

    # For devices, which hold the clock's lock.

    def submit(self, handle: Handle[Any], steps: Callable[[], Steps]) -> None:
        """Queue an operation that ends ``handle`` with its result or exception.

        If this raises, the handle has ended.
        """
        clock = self._domain.clock
        try:
            if self._closed:
                raise ClosedError("the device was closed: open it again")
            if self._failure is not None:
                raise self._refusal(handle, "was not queued; recover() forgets the failure")
            handle.steps = _begun(handle, steps())
        except BaseException as error:
            handle.finish(error)
            raise
        handle.stream = self
        handle.number = next(clock.numbers)
        handle.time = clock.present  # the earliest start
        self._queue.append(handle)
        if len(self._queue) == 1:
            self._begin()

    def _begin(self) -> None:
        """Begin the first operation of the queue."""
        first = self._queue[0]
        self._domain.clock.begin(first, self._free_at)

    def ended(self, handle: Handle[Any]) -> None:
        """Go on after the end of the operation at the head of the queue; ignore refused ones."""
        if not self._queue or handle is not self._queue[0]:
            return
        self._queue.popleft()
        self._free_at = max(self._free_at, handle.time)
        if handle.error is not None and not self._closed:
            self._fail(handle, handle.error)
        elif self._queue:
            self._begin()

    def _fail(self, first: Handle[Any], error: BaseException) -> None:
        """End the operations behind the one that failed."""
        self._failure = (first, error)
        doomed, self._queue = self._queue, deque()
        for handle in doomed:
            handle.time, handle.steps = self._free_at, None
            handle.finish(self._refusal(handle, "was not carried out"))

    def _refusal(self, handle: Handle[Any], fate: str) -> StreamFailedError:
        assert self._failure is not None
        first, error = self._failure
        refusal = StreamFailedError(
            f"stream {self.name} failed with {first.label} ({error}): {handle.label} {fate}",
            stream=self.name,
            failed=first.label,
        )
        refusal.__cause__ = error
        return refusal

    def close(self) -> None:
        """End all queued operations with :class:`ClosedError`, and refuse more."""
        self._closed = True
        doomed, self._queue = self._queue, deque()
        for handle in doomed:
            if handle.started:
                message = f"the device was closed during {handle.label}"
            else:
                message = f"the device was closed before {handle.label} began"
            self._domain.clock.abandon(handle, ClosedError(message))

    def __repr__(self) -> str:
        state = "failed" if self._failure else f"{self.queued} operations"
        return f"<Stream {self.name}: {state}>"


def perform(handle: Handle[T], steps: Callable[[], Steps], stream: Stream | None) -> Handle[T]:
    """Queue an operation in ``stream``, or carry it out now. The caller holds the clock's lock."""
    if stream is not None:
        stream.submit(handle, steps)
    else:
        handle.carry_out(steps())
    return handle


def whole_call(domain: Domain, label: str, steps: Generator[Any, None, T], turn: str) -> T:
    """Carry out ``steps`` as a call of its own and return their result.

    The call begins when the calls of other threads are over. It alone holds the resource ``turn``,
    see :meth:`~sw_driver.device.clock.Domain.turn`. Within another call of the same thread, the
    steps belong to that call and are carried out at once. Raises
    :class:`~sw_driver.device.errors.ClosedError` if the device was closed.
    """
    if domain.clock.is_within:
        domain.check_open()
        return finished(steps)
    handle: Handle[T] = Handle(label, domain)
    with domain.clock:
        handle.carry_out(_alone(domain, steps, domain.turn(turn)))
    return handle.outcome()


def one_call(
    turn: str,
) -> Callable[[Callable[Concatenate[D, P], T]], Callable[Concatenate[D, P], T]]:
    """Return a decorator that makes a method of a transport a :func:`whole_call`.

    ``turn`` may name arguments of the method in braces, such as ``{channel}``.
    """

    def decorated(method: Callable[Concatenate[D, P], T]) -> Callable[Concatenate[D, P], T]:
        signature = inspect.signature(method)

        @wraps(method)
        def call(transport: D, *args: P.args, **kwargs: P.kwargs) -> T:
            if transport.domain.clock.is_within:
                transport.domain.check_open()
                return method(transport, *args, **kwargs)
            arguments = signature.bind(transport, *args, **kwargs).arguments

            def steps() -> Generator[None, None, T]:
                yield from ()
                return method(transport, *args, **kwargs)

            name = method.__name__
            return whole_call(transport.domain, name, steps(), turn.format_map(arguments))

        return call

    return decorated


def _alone(domain: Domain, steps: Generator[Any, None, T], turn: Exclusive) -> Steps:
    while not turn.over:
        yield turn
    turn.holder = steps
    try:
        domain.check_open()
        return (yield from steps)
    finally:
        turn.release(domain)


def _begun(handle: Handle[Any], steps: Steps) -> Steps:
    """Mark the operation as begun and carry out its steps."""
    handle.start()
    return (yield from steps)


def check_timeout(timeout: Any) -> None:
    """Raise :class:`InvalidArgumentError` unless ``timeout`` is None or at least 0 seconds."""
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout >= 0):
        raise InvalidArgumentError(
            f"timeout is {timeout!r}: expected seconds, 0 or more, or None to wait for the end",
            timeout=timeout,
        )
