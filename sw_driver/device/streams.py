"""Handles and streams: what every operation returns, and queues of operations.

Nothing here runs by itself; see :mod:`sw_driver.device.clock` for when it does.
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
    """How far an operation got."""

    done: int
    total: int
    unit: str
    """Unit of the progress: ``bytes`` or ``parameters``."""

    @property
    def fraction(self) -> float:
        """Share of the operation that is done, from 0 to 1."""
        return self.done / self.total if self.total else 1.0


class Handle(Operation, Generic[T]):
    """An operation that is queued, in progress or over. Any thread may wait or ask.

    Time passes, and the operation gets on, while somebody waits. It can be awaited in asyncio:
    ``result = await handle`` lets the other tasks go on once, and then waits like :meth:`wait`.

    Parameters
    ----------
    what: the operation in words.
    domain: the device's time.
    total, unit: of the progress.
    """

    def __init__(
        self,
        what: str,
        domain: Domain,
        *,
        total: int = 0,
        unit: str = "bytes",
    ) -> None:
        super().__init__(what, domain)
        self.stream: Stream | None = None
        """The stream that the operation is queued in, if it is in one."""
        self._trace: TracebackType | None = None
        self._total = total
        self._unit = unit
        self._callbacks: list[Callable[[], None]] = []
        self._done_units = 0
        self._began: int | None = None
        self.result: T | None = None
        """What ``wait`` would return; None before the end and after a failure."""
        self.error: BaseException | None = None
        """What the operation has failed with, if it has."""

    # For those who wait.

    @property
    def done(self) -> bool:
        """Whether the operation has ended, well or not.

        To ask takes the simulated time of reading a register, so that a loop that asks ends.
        """
        clock = self.domain.clock
        if not self.over or self.time > clock.now:
            with clock:
                clock.ask(self.domain)
        return self.over and self.time <= clock.now

    @property
    def started(self) -> bool:
        """Whether the operation has been in progress, as far as time has passed."""
        return self._began is not None

    @property
    def failed(self) -> bool:
        """Whether the operation has ended with an error, as far as time has passed."""
        return self.error is not None

    @property
    def began(self) -> int:
        """Simulated time of the beginning, in the device's cycles; 0 before, and if untimed."""
        return self._began or 0 if self.domain.timed else 0

    @property
    def ended(self) -> int:
        """Simulated time of the end, in the device's cycles; 0 before, and if untimed."""
        return self.domain.cycles(self.time) if self.over and self.domain.timed else 0

    @property
    def progress(self) -> Progress:
        """How far the operation got, as far as time has passed."""
        return Progress(done=self._done_units, total=self._total, unit=self._unit)

    def wait(self, timeout: float | None = None) -> T:
        """Lets time pass until the end and returns the result; the program's simulated time is then
        that of the end.

        Raises what ended the operation otherwise;
        :class:`~sw_driver.device.errors.WaitTimeoutError` if it is not over after ``timeout``
        seconds of host time, when it can be waited for again; and
        :class:`~sw_driver.device.errors.DeadlockError` if it cannot end any more.
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
                f"{self.what} is not over after {timeout} s ({progress.done} of {progress.total} "
                f"{progress.unit} done); it goes on when it is waited for",
                timeout_s=timeout,
                done=progress.done,
                total=progress.total,
                unit=progress.unit,
            )
        return self.outcome()

    def outcome(self) -> T:
        """The result of what is over, or its error is raised."""
        if self.error is not None:
            # Or it would grow with each who waits.
            raise self.error.with_traceback(self._trace)
        return self.result  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, None, T]:
        yield from asyncio.sleep(0).__await__()
        return self.wait()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Has ``callback`` called at the end, in the thread that waits then; at once if it is over.

        It may queue operations, but not wait.
        """
        with self.domain.clock:
            if not self.over:
                self._callbacks.append(callback)
                return
        callback()

    def remove_done_callback(self, callback: Callable[[], None]) -> None:
        """``callback`` is not called any more, unless it is just being."""
        with self.domain.clock, suppress(ValueError):
            self._callbacks.remove(callback)

    # For the devices, who hold the clock.

    def carry_out(self, steps: Steps) -> None:
        """Carries the operation out for the program, which goes on at its end.

        Raises what it fails with.
        """
        self.domain.clock.perform(self, _begun(self, steps))
        if self.error is not None:
            raise self.error

    def start(self) -> None:
        """The operation begins, at its domain's time."""
        if self._began is None:
            self._began = self.domain.now

    def reach(self, units: int) -> None:
        """So many units are done."""
        self._done_units = max(self._done_units, min(units, self._total))

    def finish(self, outcome: T | BaseException) -> None:
        """Ends the operation; only the first call does."""
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
        return f"<{type(self).__name__} of {self.what}: {state}>"


class Stream:
    """A queue of operations, carried out one after the other.

    An operation begins, in simulated time, when the one before it has ended and not before it was
    queued. When one fails, those behind it are not carried out: their handles raise
    :class:`~sw_driver.device.errors.StreamFailedError`, as does queueing more, until
    :meth:`recover`.

    Streams cannot deadlock: one can only wait for what was queued before. Any thread may use it.
    """

    def __init__(self, name: str, domain: Domain) -> None:
        self.name = name
        self._domain = domain
        self._queue: deque[Handle[Any]] = deque()
        self._failure: tuple[Handle[Any], BaseException] | None = None
        self._free_at = 0
        """Tick at which the last operation ended."""
        self._closed = False

    @property
    def queued(self) -> int:
        """How many operations are queued or in progress, as far as time has passed."""
        return len(self._queue)

    @property
    def pending(self) -> list[Handle[Any]]:
        """The operations queued or in progress, in their order."""
        return list(self._queue)

    @property
    def failure(self) -> BaseException | None:
        """What the first failed operation raised; None while the stream is sound."""
        failure = self._failure
        return None if failure is None else failure[1]

    def recover(self) -> BaseException | None:
        """Forgets the failure, so that operations queued from now on are carried out."""
        with self._domain.clock:
            failure, self._failure = self._failure, None
        return None if failure is None else failure[1]

    def wait(self, timeout: float | None = None) -> None:
        """Lets time pass until all that is queued now is over; the program's simulated time is then
        that of the end.

        Raises the failure of the first operation that failed, see :meth:`recover`, and what
        :meth:`Handle.wait` raises.
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
        """Operations queued from now on begin after ``handle`` has ended; it may be another's.

        If it fails, so does the stream. Raises
        :class:`~sw_driver.device.errors.InvalidArgumentError` for what is no handle of a device on
        the same clock.
        """
        if not isinstance(handle, Handle) or handle.domain.clock is not self._domain.clock:
            raise InvalidArgumentError(
                f"{handle!r} is a {type(handle).__name__}: expected a handle that an operation of "
                "this device returned, or of one on the same clock"
            )
        waiting: Handle[None] = Handle(f"stream {self.name}'s wait for {handle.what}", self._domain)

        def steps() -> Steps:
            yield handle
            handle.outcome()

        with self._domain.clock:
            self.submit(waiting, steps)
        return waiting

    # For the devices, who hold the clock.

    def submit(self, handle: Handle[Any], steps: Callable[[], Steps]) -> None:
        """Queues an operation, whose result or exception ends ``handle``.

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
        handle.time = clock.present  # it begins no earlier
        self._queue.append(handle)
        if len(self._queue) == 1:
            self._begin()

    def _begin(self) -> None:
        """The first of the queue is next."""
        first = self._queue[0]
        self._domain.clock.begin(first, self._free_at)

    def ended(self, handle: Handle[Any]) -> None:
        """The operation at the head is over, or one behind it was refused."""
        if not self._queue or handle is not self._queue[0]:
            return
        self._queue.popleft()
        self._free_at = max(self._free_at, handle.time)
        if handle.error is not None and not self._closed:
            self._fail(handle, handle.error)
        elif self._queue:
            self._begin()

    def _fail(self, first: Handle[Any], error: BaseException) -> None:
        """Those behind the operation that failed are not carried out."""
        self._failure = (first, error)
        doomed, self._queue = self._queue, deque()
        for each in doomed:
            each.time, each.steps = self._free_at, None
            each.finish(self._refusal(each, "was not carried out"))

    def _refusal(self, handle: Handle[Any], fate: str) -> StreamFailedError:
        assert self._failure is not None
        first, error = self._failure
        refusal = StreamFailedError(
            f"stream {self.name} failed with {first.what} ({error}): {handle.what} {fate}",
            stream=self.name,
            failed=first.what,
        )
        refusal.__cause__ = error
        return refusal

    def close(self) -> None:
        """Discards what is queued, which ends with :class:`ClosedError`; takes nothing more."""
        self._closed = True
        doomed, self._queue = self._queue, deque()
        for each in doomed:
            if each.started:
                what = f"the device was closed during {each.what}"
            else:
                what = f"the device was closed before {each.what} began"
            self._domain.clock.abandon(each, ClosedError(what))

    def __repr__(self) -> str:
        state = "failed" if self._failure else f"{self.queued} operations"
        return f"<Stream {self.name}: {state}>"


def perform(handle: Handle[T], steps: Callable[[], Steps], stream: Stream | None) -> Handle[T]:
    """Queues an operation, or carries it out now without a stream. For the owner of the clock."""
    if stream is not None:
        stream.submit(handle, steps)
    else:
        handle.carry_out(steps())
    return handle


def whole_call(domain: Domain, what: str, steps: Generator[Any, None, T], turn: str) -> T:
    """Carry out ``steps``, called ``what``, as a call of its own; return their result.

    The call begins when the calls of other threads are over, and has ``turn``, see
    :meth:`~sw_driver.device.clock.Domain.turn`, for itself. Steps that a call of the same thread
    asks for belong to that call, and are carried out at once. Raises
    :class:`~sw_driver.device.errors.ClosedError` if the device was closed.
    """
    if domain.clock.is_within:
        domain.check_open()
        return finished(steps)
    handle: Handle[T] = Handle(what, domain)
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
    """Notes when the operation begins."""
    handle.start()
    return (yield from steps)


def check_timeout(timeout: Any) -> None:
    """Raises :class:`InvalidArgumentError` for what is no number of seconds from 0 on, nor None."""
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout >= 0):
        raise InvalidArgumentError(
            f"timeout is {timeout!r}: expected seconds, 0 or more, or None to wait for the end",
            timeout=timeout,
        )
