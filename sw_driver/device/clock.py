"""Simulated time: what is to be done in it, and in which order.

Time passes where a program waits, and nowhere else. What is to be done is done in steps: of the
operations that can go on, the one that is furthest behind in simulated time takes the next step;
of several at the same time, the one that was asked for first. No thread and no clock of the host
decides anything, so the same calls give the same times.
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
"""Seconds between looks for an interrupt while another thread's call is waited for."""

_WITHIN = nullcontext()

_CATCH_UP_CYCLES = 1024
"""Cycles that pass at most in a step of a device that does nothing."""


class Awaited(Protocol):
    """What an operation may wait for."""

    what: str
    """What it is, in words."""
    time: int
    """When it was over, in ticks of the clock."""

    @property
    def over(self) -> bool:
        """Whether nobody need wait for it any more."""
        ...


Steps = Generator[Awaited | None, None, Any]
"""An operation. At a ``yield`` those come first that are behind; who yields something goes on when
that is over, at its time or later, and who yields :data:`OTHERS_FIRST` after all of its time.
``domain.now`` is the time of the step, and where it leaves it that of the next one; what yields
again and again without a later time never lets a question to the device come to its end."""


def finished(steps: Generator[Any, None, T]) -> T:
    """What an operation returns that has all its turns at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class Exclusive:
    """What one operation has at a time; whoever waits for it gets it in the order of time."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.time = 0
        self.holder: object | None = None

    @property
    def over(self) -> bool:
        """Whether it is free."""
        return self.holder is None

    def release(self, domain: Domain) -> None:
        """It is free from the domain's time on."""
        self.holder = None
        self.time = max(self.time, domain.ticks(domain.now))


OTHERS_FIRST = Exclusive("others")
"""What an operation yields that asks hardware without a simulated time again and again."""


class Domain:
    """A clock domain: the cycles in which a device, or a network of them, tells the time.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for what is no clock.

    Parameters
    ----------
    clock: the clock that the device shares with others; None: it has one of its own.
    mhz: the frequency of its cycles.
    question_cycles: what it takes to ask the device something, a read of a register; 0 without a
        time.
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
        """Time, in cycles, of the operation that takes a step at present."""
        self.closed = False
        """State of the device: True once it was closed."""
        self._turns: dict[str, Exclusive] = {}
        # Ticks of a clock of its own are cycles, those of a shared one picoseconds.
        shared = clock is not None and self.timed
        self._cycle_ticks = 10**6 / Fraction(mhz) if shared else None

    def close(self) -> None:
        """Have every later call of the device refused, by :meth:`check_open`."""
        self.closed = True

    def check_open(self) -> None:
        """Raise :class:`~sw_driver.device.errors.ClosedError` if the device was closed."""
        if self.closed:
            raise ClosedError("the device was closed: open it again")

    def turn(self, what: str) -> Exclusive:
        """Return what one operation has at a time, by its name; always the same one."""
        return self._turns.setdefault(what, Exclusive(what))

    def ticks(self, cycles: int) -> int:
        """A time in ticks of the clock."""
        return cycles if self._cycle_ticks is None else int(cycles * self._cycle_ticks)

    def cycles(self, ticks: int) -> int:
        """The first cycle from that tick on; :meth:`ticks` of a cycle are those of that cycle."""
        return ticks if self._cycle_ticks is None else -int(-ticks // self._cycle_ticks)

    @property
    def program_now(self) -> int:
        """The program's time, in cycles."""
        return self.cycles(self.clock.now)

    def catch_up(
        self, cycles: Callable[[], int], advance: Callable[[int], object]
    ) -> Generator[None, None, None]:
        """Lets the time of a device that does nothing pass until this one's, in steps."""
        while self.timed and (behind := self.now - cycles()) > 0:
            advance(min(behind, _CATCH_UP_CYCLES))
            yield

    @property
    def horizon(self) -> int:
        """The cycle before which no other operation does anything, while one takes a step."""
        horizon = self.clock.horizon
        return horizon if horizon == NEVER else self.cycles(horizon)


class Operation:
    """Something that is done in steps, see :data:`Steps`."""

    def __init__(self, what: str, domain: Domain) -> None:
        self.what = what
        """The operation in words."""
        self.domain = domain
        self.steps: Steps | None = None
        self.time = 0
        """The tick before which it asks for nothing; that of its end once it is over."""
        self.number = 0
        """Its place in the order of calls."""
        self.waits_for: Awaited | None = None
        self.over = False

    def finish(self, outcome: Any) -> None:
        """Is called at the end, with the result or what was raised."""
        self.over = True


class Clock:
    """The simulated time of one device, in its cycles, or of several, in picoseconds.

    A program makes one for devices that are to share their time. Any thread may call a device: a
    whole call, what it waits for included, is one at a time (``with clock``).
    """

    def __init__(self) -> None:
        self.now = 0
        """The program's time, in ticks: what it asks for next begins no earlier."""
        self.horizon = NEVER
        """Tick before which nobody but the operation that takes a step does anything."""
        self._active: list[Operation] = []
        self.numbers = itertools.count()
        """Places in the order of calls."""
        self._callbacks: deque[tuple[int, Callable[[], None]]] = deque()
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._handler: Any = None
        """What an interrupt (Ctrl-C) is for, during a call of the main thread."""
        self._interrupt: tuple[int, Any] | None = None
        self._calling_back: dict[int, int] = {}
        """Threads that call back, and for what tick."""
        self._pid = os.getpid()

    # One call at a time.

    def __enter__(self) -> Clock:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def within(self) -> AbstractContextManager[object]:
        """Return a call, or nothing to enter if the thread :attr:`is_within` one."""
        return _WITHIN if self.is_within else self

    def enter(self, timeout_s: float | None = None) -> bool:
        """Begins a call, when those of other threads are over; False if that lasts too long.

        Raises :class:`~sw_driver.device.errors.ClosedError` in a fork, whose devices are not
        there, and :class:`~sw_driver.device.errors.DeadlockError` within another call of the same
        thread.
        """
        if os.getpid() != self._pid:  # as is_forked
            raise ClosedError(
                f"the device was opened by process {self._pid}, of which this one, {os.getpid()}, "
                "is a fork: open it after the fork",
                pid=self._pid,
            )
        if self.is_called:
            raise DeadlockError(
                "a device was called in the middle of a call of the same thread, as by a signal's "
                "handler or a transport: call it when that is over"
            )
        # From here on an interrupt is kept until between two steps, or the end.
        self._keep_interrupts()
        # Of a thread's own it is no obstacle: garbage collection may close a device at any moment.
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
        """Ends a call, and calls back those who wait for what has ended meanwhile."""
        if self._owner == threading.get_ident():  # not if it was interrupted as it went on
            self._owner = None
            self._lock.release()
        if self._handler is not None:
            self._take_interrupts()
        if not self._callbacks or self._is_calling_back:
            return
        thread = threading.get_ident()
        try:
            with suppress(IndexError):  # when all are called, by whichever thread
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
        """An interrupt that was kept comes now, and others at any time."""
        if self._handler is None or threading.current_thread() is not threading.main_thread():
            return
        handler, self._handler = self._handler, None
        signal.signal(signal.SIGINT, handler)
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            handler(*interrupt)

    def _let_others_call(self) -> None:
        """Between two steps: callbacks, and calls of other threads."""
        try:
            self.leave()
        finally:
            self.enter()

    @property
    def _is_calling_back(self) -> bool:
        return threading.get_ident() in self._calling_back

    @property
    def is_called(self) -> bool:
        """Whether the calling thread is in the middle of a call."""
        return self._owner == threading.get_ident()

    @property
    def is_within(self) -> bool:
        """True in the middle of a call of this thread, and in a forked process."""
        return self.is_called or self.is_forked

    @property
    def present(self) -> int:
        """The tick at which the caller is: the program's, or that which is called back for."""
        return max(self.now, self._calling_back.get(threading.get_ident(), 0))

    def postpone(self, call: Callable[[], None], at: int = 0) -> None:
        """Has ``call`` made when the present step is over, without the lock, by whoever waits, or
        at the end of the next call: for callbacks, and garbage collection, which comes at any
        time. What it queues begins at the tick ``at`` or later."""
        self._callbacks.append((at, call))

    def release(self, call: Callable[[], None]) -> None:
        """Makes ``call``, which frees or closes something, as a call of its own: at once, or after
        the one that the thread is in the middle of, as garbage collection may find it."""
        if self.is_called:
            self.postpone(lambda: self.release(call))
        else:
            with self:
                call()

    @property
    def is_forked(self) -> bool:
        """Whether the process is a fork of that of the clock, which has none of its devices."""
        return os.getpid() != self._pid

    # The rest is for the owner of the lock.

    def begin(self, operation: Operation, not_before: int) -> None:
        """The operation, which has a number and steps, is to be carried out from a tick on."""
        operation.time = max(operation.time, not_before)
        self._active.append(operation)

    def begin_now(self, operation: Operation, steps: Steps) -> None:
        """The operation is to be carried out from now on."""
        operation.steps = steps
        operation.number = next(self.numbers)
        now = self.present if self._calling_back else self.now
        operation.time = max(operation.time, now)
        self._active.append(operation)

    def close(self, domain: Domain) -> None:
        """Ends what was begun in a domain and is not over, with
        :class:`~sw_driver.device.errors.ClosedError`."""
        for each in [each for each in self._active if each.domain is domain]:
            self.abandon(each, ClosedError(f"the device was closed during {each.what}"))

    def abandon(self, operation: Operation, error: BaseException) -> None:
        """Ends an operation, begun or not, that is not over, with ``error``."""
        outcome: BaseException = error
        if operation.steps is not None:
            operation.domain.now = operation.domain.cycles(operation.time)
            try:
                operation.steps.throw(error)
            except BaseException as raised:  # the same, or what came of it
                outcome = raised
            operation.steps.close()
        self._end(operation, outcome)

    def perform(self, operation: Operation, steps: Steps) -> None:
        """Carries out an operation of the program's, which goes on at its end.

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
        """Lets time pass until ``awaited`` is over; False after that many seconds of the host.

        Callbacks are called meanwhile, without the lock, and an interrupt is taken between two
        steps. Raises :class:`~sw_driver.device.errors.DeadlockError` if it cannot happen any more,
        or is awaited by a callback.
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
            # Not before the first step, or who asks in vain again and again would never see it.
            if deadline is not None and time.monotonic() >= deadline:
                return awaited.over
        return True

    def ask(self, domain: Domain) -> None:
        """Lets the time pass that a question to the device takes; without a time, makes a step."""
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
        """An interrupt comes between two steps, in the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._take_interrupts()
            self._keep_interrupts()

    def _check_waits(self, awaited: Awaited) -> None:
        if self._is_calling_back:
            raise DeadlockError(
                f"a callback waits for {awaited.what}: it may queue operations, not wait for them"
            )

    def _next(self, limit: int) -> Operation | None:
        """The operation that takes the next step; sets the horizon, ``limit`` at the latest."""
        best: Operation | None = None
        horizon = limit
        for each in self._active:
            awaited = each.waits_for
            if awaited is not None:
                if not awaited.over:
                    continue
                each.waits_for = None
                each.time = max(each.time, awaited.time)
            if best is None:
                best = each
            elif (each.time, each.number) < (best.time, best.number):
                horizon = min(horizon, best.time)
                best = each
            else:
                horizon = min(horizon, each.time)
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
        except BaseException as error:  # goes to whoever waits
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
            f"{each.what} waits for {each.waits_for.what}"
            for each in self._active
            if each.waits_for is not None
        ]
        return DeadlockError(
            f"{awaited.what} cannot happen any more: {'; '.join(waiting) or 'nothing is queued'}"
        )


def _reported(call: Callable[[], None]) -> None:
    """Makes a call that nobody asked for here: what it raises is reported."""
    try:
        call()
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
