"""Simulated time: which operation takes the next step, and when.

Time passes only while a program waits. Operations are carried out in steps. The ready operation
with the earliest simulated time takes the next step; at equal times, the one that was queued first.
No host thread or host clock decides anything, so the same calls give the same times.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext, suppress
from fractions import Fraction
from typing import Any, Protocol, TypeVar

from .errors import ClosedError, DeadlockError, InvalidArgumentError

__all__ = [
    "OTHERS_FIRST",
    "Awaited",
    "Clock",
    "Domain",
    "Exclusive",
    "Operation",
    "Steps",
    "finished",
]

T = TypeVar("T")

NEVER = 1 << 62
LOOK_S = 0.1
"""Seconds between checks for an interrupt while another thread's call is in progress."""

_WITHIN = nullcontext()

_CATCH_UP_CYCLES = 1024
"""Cycles that an idle device advances in one step, at most."""


class Awaited(Protocol):
    """A condition that an operation may wait for."""

    label: str
    """Name in messages."""
    time: int
    """Time at which it ended, in ticks of the clock."""

    @property
    def over(self) -> bool:
        """True if nothing needs to wait for it any more."""
        ...


Steps = Generator[Awaited | None, None, Any]
"""Steps of an operation. At a ``yield``, operations with an earlier time run first.

After yielding an :class:`Awaited`, the operation goes on once that is over, at its time or later.
After yielding :data:`OTHERS_FIRST`, it goes on after all others of the same time. ``domain.now`` is
the time of the step; the value that a step leaves there is the time of the next. A read of the
device never ends if an operation keeps yielding without advancing the time.
"""


def finished(steps: Generator[Any, None, T]) -> T:
    """Run all steps at once and return the operation's result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class Exclusive:
    """A resource that one operation holds at a time; waiting operations get it in order of time."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.time = 0
        self.holder: object | None = None

    @property
    def over(self) -> bool:
        """True if the resource is free."""
        return self.holder is None

    def release(self, domain: Domain) -> None:
        """Free the resource from the domain's time on."""
        self.holder = None
        self.time = max(self.time, domain.ticks(domain.now))


OTHERS_FIRST = Exclusive("others")
"""Yielded by an operation that polls hardware without a simulated time."""


class Domain:
    """A clock domain: the cycles of a device or a network of devices.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if ``clock`` is not a clock.

    Parameters
    ----------
    clock: clock shared with other devices; None for a clock of its own.
    mhz: frequency of its cycles.
    question_cycles: cycles of a query to the device, such as a register read; 0 if the device has
        no simulated time.

    Examples
    --------
    >>> clock = Clock()
    >>> device, link = Domain(clock, mhz=200), Domain(clock, mhz=1000)
    >>> link.cycles(device.ticks(1)), device.cycles(link.ticks(10))  # 5 ns and 10 ns
    (1, 10)
    """

    def __init__(
        self, clock: Clock | None = None, *, mhz: float = 1.0, question_cycles: int = 0
    ) -> None:
        if clock is not None and not isinstance(clock, Clock):
            raise InvalidArgumentError(
                f"clock is {clock!r}: expected a Clock() of sw_driver.device.clock, or None for "
                "one of the device's own",
                clock=repr(clock),
            )
        self.clock = clock or Clock()
        self.cycle_ns = 1000 / mhz
        self.question_cycles = question_cycles
        self.timed = question_cycles > 0
        self.now = 0
        """Time of the current step, in cycles."""
        self.closed = False
        """True once the device was closed."""
        self._turns: dict[str, Exclusive] = {}
        # Ticks are cycles on a private clock and picoseconds on a shared one.
        shared = clock is not None and self.timed
        self._cycle_ticks = 10**6 / Fraction(mhz) if shared else None

    def close(self) -> None:
        """Make :meth:`check_open` refuse later calls of the device."""
        self.closed = True

    def check_open(self) -> None:
        """Raise :class:`~sw_driver.device.errors.ClosedError` if the device was closed."""
        if self.closed:
            raise ClosedError("the device was closed: open it again")

    def turn(self, name: str) -> Exclusive:
        """Return the resource called ``name``, the same one at each call."""
        return self._turns.setdefault(name, Exclusive(name))

    def ticks(self, cycles: int) -> int:
        """Convert cycles to ticks of the clock."""
        return cycles if self._cycle_ticks is None else int(cycles * self._cycle_ticks)

    def cycles(self, ticks: int) -> int:
        """Return the first cycle at or after a tick; the inverse of :meth:`ticks`."""
        return ticks if self._cycle_ticks is None else -int(-ticks // self._cycle_ticks)

    @property
    def program_now(self) -> int:
        """The program's time, in cycles."""
        return self.cycles(self.clock.now)

    def catch_up(
        self, cycles: Callable[[], int], advance: Callable[[int], object]
    ) -> Generator[None, None, None]:
        """Advance an idle device to the domain's time, in steps."""
        while self.timed and (behind := self.now - cycles()) > 0:
            advance(min(behind, _CATCH_UP_CYCLES))
            yield

    @property
    def horizon(self) -> int:
        """Cycle until which the operation that takes a step runs alone."""
        horizon = self.clock.horizon
        return horizon if horizon == NEVER else self.cycles(horizon)


class Operation:
    """An operation that is carried out in :data:`Steps`."""

    def __init__(self, label: str, domain: Domain) -> None:
        self.label = label
        """The operation's name in messages."""
        self.domain = domain
        self.steps: Steps | None = None
        self.time = 0
        """Tick of the next step at the earliest; once over, the tick of the end."""
        self.number = 0
        """Place in the order of calls."""
        self.waits_for: Awaited | None = None
        self.over = False

    def finish(self, outcome: Any) -> None:
        """End the operation with its result or the exception that it raised."""
        self.over = True


class Clock:
    """Simulated time of one device, in its cycles, or of several devices, in picoseconds.

    Devices share their time if they get the same clock. Any thread may call a device. Only one call
    runs at a time, including its waits (``with clock``).

    Examples
    --------
    >>> import numpy as np
    >>> from nearmem import Axdimm
    >>> clock, line = Clock(), np.ones(16, np.float32)
    >>> with Axdimm("cycles", clock=clock) as one, Axdimm("cycles", clock=clock) as other:
    ...     first = one.MemcpyHost2Axdimm(one.MallocAxdimm(64, 0), line, 64)
    ...     second = other.MemcpyHost2Axdimm(other.MallocAxdimm(64, 0), line, 64)
    ...     print(second.began >= first.ended)
    True
    """

    def __init__(self) -> None:
        self.now = 0
        """The program's time, in ticks: its next operation begins no earlier."""
        self.horizon = NEVER
        """Tick until which the operation that takes a step runs alone."""
        self._active: list[Operation] = []
        self.numbers = itertools.count()
        """Places in the order of calls."""
        self._callbacks: deque[tuple[int, Callable[[], None]]] = deque()
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._handler: Any = None
        """Handler of Ctrl-C to restore at the end of a call of the main thread."""
        self._interrupt: tuple[int, Any] | None = None
        self._calling_back: dict[int, int] = {}
        """Threads that run callbacks, with the tick of each callback."""
        self._pid = os.getpid()

    # One call at a time.

    def __enter__(self) -> Clock:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def within(self) -> AbstractContextManager[object]:
        """Return a context that holds the lock, or does nothing if the thread :attr:`is_within`."""
        return _WITHIN if self.is_within else self

    def enter(self, timeout_s: float | None = None) -> bool:
        """Begin a call once no other thread is in one; return False after ``timeout_s``.

        Raises :class:`~sw_driver.device.errors.ClosedError` in a forked process, which lacks the
        devices, and :class:`~sw_driver.device.errors.DeadlockError` within another call of the same
        thread.
        """
        if os.getpid() != self._pid:  # as is_forked
            raise ClosedError(
                f"the device was opened by process {self._pid}, and this process {os.getpid()} is "
                "a fork of it: open it after the fork",
                pid=self._pid,
            )
        if self.is_called:
            raise DeadlockError(
                "a device was called in the middle of a call of the same thread, as by a signal's "
                "handler or a transport: call it when that is over"
            )
        # From here on an interrupt is deferred until a step or the call ends.
        self._keep_interrupts()
        # The lock is reentrant: garbage collection may close a device at any moment.
        if not self._lock.acquire(blocking=False):
            end = None if timeout_s is None else time.monotonic() + timeout_s
            look_s = LOOK_S if timeout_s is None else min(LOOK_S, timeout_s)
            while not self._lock.acquire(timeout=look_s):
                if self._interrupt:
                    self._interrupted()
                if end is not None and time.monotonic() >= end:
                    self._take_interrupts()
                    return False
        self._owner = threading.get_ident()
        return True

    def leave(self) -> None:
        """End a call, and run the callbacks of operations that have ended meanwhile."""
        if self._owner == threading.get_ident():  # not if interrupted while re-entering
            self._owner = None
            self._lock.release()
        if self._handler is not None:
            self._take_interrupts()
        if not self._callbacks or self._is_calling_back:
            return
        thread = threading.get_ident()
        try:
            with suppress(IndexError):  # all were called, perhaps by another thread
                while True:
                    self._calling_back[thread], call = self._callbacks.popleft()
                    _reported(call)
        finally:
            self._calling_back.pop(thread, None)

    def _keep_interrupts(self) -> None:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            # Garbage collection may make a call while this one begins.
            if callable(handler) and handler != self._keep:
                self._handler = handler
                signal.signal(signal.SIGINT, self._keep)

    def _keep(self, number: int, frame: Any) -> None:
        self._interrupt = (number, frame)

    def _take_interrupts(self) -> None:
        """Restore the handler of Ctrl-C, and deliver the deferred interrupt."""
        if self._handler is None or threading.current_thread() is not threading.main_thread():
            return
        handler, self._handler = self._handler, None
        signal.signal(signal.SIGINT, handler)
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            handler(*interrupt)

    def _let_others_call(self) -> None:
        """Run callbacks and calls of other threads between two steps."""
        try:
            self.leave()
        finally:
            self.enter()

    @property
    def _is_calling_back(self) -> bool:
        return threading.get_ident() in self._calling_back

    @property
    def is_called(self) -> bool:
        """True if the calling thread is in the middle of a call."""
        return self._owner == threading.get_ident()

    @property
    def is_within(self) -> bool:
        """True in the middle of a call of this thread, and in a forked process."""
        return self.is_called or self.is_forked

    @property
    def present(self) -> int:
        """The caller's time, in ticks: the program's, or that of the running callback."""
        return max(self.now, self._calling_back.get(threading.get_ident(), 0))

    def postpone(self, call: Callable[[], None], at: int = 0) -> None:
        """Make ``call`` after the current step, outside the lock, or after the next call.

        The thread that waits then makes it. This is for callbacks and for garbage collection, which
        may run at any time. Operations that it queues begin at the tick ``at`` or later.
        """
        self._callbacks.append((at, call))

    def release(self, call: Callable[[], None]) -> None:
        """Make ``call``, which frees or closes something, as a call of its own.

        It runs at once or, if garbage collection interrupted a call of this thread, afterwards.
        """
        if self.is_called:
            self.postpone(lambda: self.release(call))
        else:
            with self:
                call()

    @property
    def is_forked(self) -> bool:
        """True in a fork of the clock's process, which has none of its devices."""
        return os.getpid() != self._pid

    # The methods below need the lock.

    def begin(self, operation: Operation, not_before: int) -> None:
        """Begin an operation, which has a number and steps, at ``not_before`` or later."""
        operation.time = max(operation.time, not_before)
        self._active.append(operation)

    def begin_now(self, operation: Operation, steps: Steps) -> None:
        """Begin an operation at the caller's present time."""
        operation.steps = steps
        operation.number = next(self.numbers)
        now = self.present if self._calling_back else self.now
        operation.time = max(operation.time, now)
        self._active.append(operation)

    def close(self, domain: Domain) -> None:
        """End the unfinished operations of a domain.

        They raise :class:`~sw_driver.device.errors.ClosedError`.
        """
        for operation in [active for active in self._active if active.domain is domain]:
            self.abandon(operation, ClosedError(f"the device was closed during {operation.label}"))

    def abandon(self, operation: Operation, error: BaseException) -> None:
        """End an unfinished operation, begun or not, with ``error``."""
        outcome: BaseException = error
        if operation.steps is not None:
            operation.domain.now = operation.domain.cycles(operation.time)
            try:
                operation.steps.throw(error)
            except BaseException as raised:  # the same error, or one that it caused
                outcome = raised
            operation.steps.close()
        self._end(operation, outcome)

    def perform(self, operation: Operation, steps: Steps) -> None:
        """Carry out an operation of the program and advance the program's time to its end.

        If the program is interrupted meanwhile, the operation is abandoned.
        """
        if self._calling_back:
            self._check_waits(operation)
        self.begin_now(operation, steps)
        try:
            self.horizon = NEVER
            while self._active == [operation] and operation.waits_for is None:
                self._step(operation)
                if self._interrupt:
                    self._interrupted()
            if not operation.over:
                self.run(operation)
        except BaseException as error:
            if not operation.over:
                self.abandon(operation, error)
            raise
        finally:
            self.now = max(self.now, operation.time)

    def run(self, awaited: Awaited, timeout_s: float | None = None) -> bool:
        """Let time pass until ``awaited`` is over; return False after ``timeout_s`` of host time.

        Callbacks run meanwhile, outside the lock. Interrupts are taken between two steps. Raises
        :class:`~sw_driver.device.errors.DeadlockError` if ``awaited`` can never be over, or if a
        callback awaits it.
        """
        if awaited.over:
            return True
        if self._calling_back:
            self._check_waits(awaited)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not awaited.over:
            operation = self._next(NEVER)
            if operation is None:
                raise self._deadlock(awaited)
            self._step(operation)
            if self._interrupt:
                self._interrupted()
            if self._callbacks:
                self._let_others_call()
            # Check after a step: otherwise a caller that polls would never make progress.
            if deadline is not None and time.monotonic() >= deadline:
                return awaited.over
        return True

    def ask(self, domain: Domain) -> None:
        """Advance the time by a query to the device; make one step if it has no simulated time."""
        self.now = domain.ticks(domain.cycles(self.now) + domain.question_cycles)
        while (operation := self._next(self.now)) is not None:
            if domain.question_cycles and operation.time >= self.now:
                break
            self._step(operation)
            if self._interrupt:
                self._interrupted()
            if self._callbacks:
                self._let_others_call()
            if not domain.question_cycles:
                break

    def _interrupted(self) -> None:
        """Take an interrupt between two steps, in the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._take_interrupts()
            self._keep_interrupts()

    def _check_waits(self, awaited: Awaited) -> None:
        if self._is_calling_back:
            raise DeadlockError(
                f"a callback waits for {awaited.label}: it may queue operations, not wait for them"
            )

    def _next(self, limit: int) -> Operation | None:
        """Return the operation of the next step; set the horizon, at most ``limit``."""
        best: Operation | None = None
        horizon = limit
        for operation in self._active:
            awaited = operation.waits_for
            if awaited is not None:
                if not awaited.over:
                    continue
                operation.waits_for = None
                operation.time = max(operation.time, awaited.time)
            if best is None:
                best = operation
            elif (operation.time, operation.number) < (best.time, best.number):
                horizon = min(horizon, best.time)
                best = operation
            else:
                horizon = min(horizon, operation.time)
        self.horizon = horizon
        return best

    def _step(self, operation: Operation) -> None:
        domain = operation.domain
        domain.now = domain.cycles(operation.time)
        try:
            assert operation.steps is not None
            operation.waits_for = next(operation.steps)
        except StopIteration as end:
            outcome = end.value
        except BaseException as error:  # is raised in the caller that waits
            outcome = error
        else:
            operation.time = max(operation.time, domain.ticks(domain.now))
            if operation.waits_for is OTHERS_FIRST:
                operation.number = next(self.numbers)
            return
        operation.time = max(operation.time, domain.ticks(domain.now))
        self._end(operation, outcome)

    def _end(self, operation: Operation, outcome: Any) -> None:
        if operation in self._active:
            self._active.remove(operation)
        operation.steps = None
        operation.waits_for = None
        operation.finish(outcome)

    def _deadlock(self, awaited: Awaited) -> DeadlockError:
        waiting = [
            f"{operation.label} waits for {operation.waits_for.label}"
            for operation in self._active
            if operation.waits_for is not None
        ]
        return DeadlockError(
            f"{awaited.label} cannot happen any more: {'; '.join(waiting) or 'nothing is queued'}"
        )


def _reported(call: Callable[[], None]) -> None:
    """Make a call and report its exception through ``sys.excepthook``."""
    try:
        call()
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
