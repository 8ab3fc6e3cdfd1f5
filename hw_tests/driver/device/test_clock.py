"""Simulated time: who takes the next step, who waits for whom, and what interrupts it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import FrameType

import pytest

from hw_tests.driver.transports import Bytes, TransportWrapper
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.device import clock, errors
from sw_driver.device.clock import OTHERS_FIRST, Clock, Domain, Exclusive, Steps
from sw_driver.device.link import REMEMBERED_USES, ReservedLink, first_free_together
from sw_driver.device.streams import Handle, Stream

SECONDS = 60
QUESTION = 10


class Scene:
    """A device that counts: each of its operations takes some steps."""

    def __init__(self, clock: Clock | None = None, mhz: float = 1.0) -> None:
        self.domain = Domain(clock, mhz=mhz, question_cycles=QUESTION)
        self.clock = self.domain.clock
        self.log: list[tuple[str, int]] = []
        """Who took a step, and when."""

    def stream(self, name: str = "") -> Stream:
        return Stream(name, self.domain)

    def steps(self, name: str, *cycles: int, then: Callable[[], object] | None = None) -> Steps:
        """A step for each duration; then calls something in the last."""
        for each in cycles:
            self.log.append((name, self.domain.now))
            self.domain.now += each
            yield
        if then is not None:
            then()
        return name

    def queue(
        self, stream: Stream, name: str, *cycles: int, then: Callable[[], object] | None = None
    ) -> Handle[str]:
        handle: Handle[str] = Handle(name, self.domain)
        with self.clock:
            stream.submit(handle, lambda: self.steps(name, *cycles, then=then))
        return handle

    def call(self, name: str, *cycles: int, then: Callable[[], object] | None = None) -> str:
        handle: Handle[str] = Handle(name, self.domain)
        with self.clock:
            handle.carry_out(self.steps(name, *cycles, then=then))
        return handle.outcome()


@pytest.fixture
def scene() -> Scene:
    return Scene()


# The order.


def test_who_is_furthest_behind_takes_the_next_step(scene: Scene) -> None:
    one = scene.queue(scene.stream(), "one", 30, 30)
    other = scene.queue(scene.stream(), "other", 20, 20, 20)
    assert [one.wait(), other.wait()] == ["one", "other"]
    assert scene.log == [("one", 0), ("other", 0), ("other", 20), ("one", 30), ("other", 40)]
    assert [(each.began, each.ended) for each in (one, other)] == [(0, 60), (0, 60)]


def test_of_those_at_the_same_time_the_first_call_is_first(scene: Scene) -> None:
    """Also when it was made for a stream that was free only later."""
    first, second = scene.stream(), scene.stream()
    scene.queue(first, "before", 10)
    scene.queue(second, "longer", 4, 6)
    scene.queue(second, "called first", 5)
    scene.queue(first, "called last", 5)
    for stream in (first, second):
        stream.wait()
    assert scene.log[-2:] == [("called first", 10), ("called last", 10)]


def test_nothing_begins_before_it_was_queued(scene: Scene) -> None:
    scene.call("call", 25)
    queued = scene.queue(scene.stream(), "queued", 5)
    queued.wait()
    assert (queued.began, queued.ended, scene.domain.program_now) == (25, 30, 30)


def test_a_step_is_told_when_others_do_something(scene: Scene) -> None:
    horizons: list[int] = []
    scene.queue(scene.stream(), "other", 40, 40)
    for cycles in (10, 100):
        scene.call("call", cycles, then=lambda: horizons.append(scene.domain.horizon))
    assert horizons[0] == 40
    assert horizons[1] > 1 << 60  # nobody else is there any more


def test_a_step_of_a_question_is_told_of_its_end(scene: Scene) -> None:
    horizons: list[int] = []
    scene.queue(scene.stream(), "other", 40, 40)
    asked = scene.queue(scene.stream(), "asked", then=lambda: horizons.append(scene.domain.horizon))
    assert asked.done
    assert horizons == [QUESTION]


def test_who_asks_hardware_again_and_again_lets_others_come_first(scene: Scene) -> None:
    """Also in a stream, in which others follow."""
    asked: list[str] = []

    def asking(name: str) -> Steps:
        for _ in range(2):
            asked.append(name)
            yield OTHERS_FIRST

    with scene.clock:
        handles = []
        for name in ("one", "other"):
            stream = scene.stream()
            for _ in range(2):
                handles.append(Handle[None](name, scene.domain))
                stream.submit(handles[-1], lambda name=name: asking(name))
    for handle in handles:
        handle.wait()
    assert asked == ["one", "other"] * 4


@pytest.mark.parametrize("scene", [Scene(), Scene(Clock(), mhz=200)], ids=["alone", "shared"])
def test_what_is_exclusive_goes_round_in_the_order_of_time(scene: Scene) -> None:
    exclusive = Exclusive("the only one")
    had: list[tuple[str, int]] = []

    def steps(name: str, cycles: int) -> Steps:
        scene.domain.now += cycles
        yield
        while not exclusive.over:
            yield exclusive
        exclusive.holder = name
        had.append((name, scene.domain.now))
        scene.domain.now += 100
        yield
        exclusive.release(scene.domain)

    handles = [Handle[None](name, scene.domain) for name in ("late", "early", "later")]
    with scene.clock:
        for handle, cycles in zip(handles, (20, 10, 30), strict=True):
            scene.stream().submit(handle, lambda name=handle.label, at=cycles: steps(name, at))
    handles[-1].wait()
    # Who waited has it from its release on; at that time, all are equal but for their calls.
    assert had == [("early", 10), ("late", 110), ("later", 210)]


# What cannot happen.


def test_a_deadlock_says_who_waits_for_whom(scene: Scene) -> None:
    exclusive = Exclusive("the channel")
    exclusive.holder = "nobody"

    def steps() -> Steps:
        yield exclusive

    copy: Handle[None] = Handle("a copy", scene.domain)
    stream, other = scene.stream("first"), scene.stream("second")
    with scene.clock:
        stream.submit(copy, steps)
    waiting = other.wait_for(copy)
    said = (
        "stream second's wait for a copy cannot happen any more: a copy waits for the channel; "
        "stream second's wait for a copy waits for a copy"
    )
    for _ in range(2):
        with pytest.raises(errors.DeadlockError, match=said):
            waiting.wait()
    with pytest.raises(errors.DeadlockError, match="nobody's cannot happen any more: a copy"):
        Handle[None]("nobody's", scene.domain).wait()
    # What was queued stays queued.
    scene.domain.now = 7
    exclusive.release(scene.domain)
    waiting.wait()
    assert (copy.ended, scene.domain.program_now) == (7, 7)


def test_a_direct_call_that_cannot_end_is_taken_back(scene: Scene) -> None:
    exclusive = Exclusive("the channel")
    exclusive.holder = "nobody"

    def steps() -> Steps:
        yield exclusive

    with pytest.raises(errors.DeadlockError, match="a copy waits for the channel"), scene.clock:
        Handle[None]("a copy", scene.domain).carry_out(steps())
    with pytest.raises(errors.DeadlockError, match="nothing is queued"):
        Handle[None]("nobody's", scene.domain).wait()


def test_no_device_is_called_within_a_step() -> None:
    """As by a transport."""

    class Calling(TransportWrapper):
        def write_steps(
            self, channel: int, address: int, data: Bytes
        ) -> Generator[None, None, None]:
            device.MallocAxdimm(64, 0)
            return super().write_steps(channel, address, data)

    with Axdimm(Calling(GoldenTransport())) as device:
        for queue in (None, device.stream(0)):
            with pytest.raises(errors.DeadlockError, match="in the middle of a call"):
                device.SetArbiterAcc(0, stream=queue).wait()
        device.MallocAxdimm(64, 0)


def test_what_is_not_carried_out_ends_with_the_failure(scene: Scene) -> None:
    def fail() -> None:
        raise ValueError("broken")

    stream = scene.stream()
    failed = scene.queue(stream, "failed", 30, then=fail)
    behind = scene.queue(stream, "behind", 5)
    with pytest.raises(errors.StreamFailedError):
        behind.wait()
    assert failed.ended == behind.ended == scene.domain.program_now == 30


def test_progress_neither_goes_back_nor_past_the_end(scene: Scene) -> None:
    handle = Handle[None]("ten", scene.domain, total=10)
    done = []
    for units in (4, 2, 16):
        handle.reach(units)
        done.append(handle.progress.done)
    assert done == [4, 4, 10]


# Asking.


def test_to_ask_takes_time_and_steps_who_is_behind(scene: Scene) -> None:
    handle = scene.queue(scene.stream(), "asked", 4, 4, 4, 20, 20)
    scene.queue(scene.stream(), "later", 100)
    assert not handle.done
    assert scene.domain.program_now == QUESTION
    assert scene.log == [("asked", 0), ("later", 0), ("asked", 4), ("asked", 8)]
    for _ in range(4):
        assert not handle.done
    # Its end is at 52, so the sixth answer is the first that can tell.
    assert handle.done
    assert scene.domain.program_now == 60
    # What is known costs nothing.
    assert handle.done
    assert scene.domain.program_now == 60


def test_to_ask_makes_no_step_at_the_end_of_the_question(scene: Scene) -> None:
    handle = scene.queue(scene.stream(), "asked", QUESTION, 1)
    assert not handle.done
    assert scene.log == [("asked", 0)]


def test_to_ask_what_has_no_time_makes_a_step() -> None:
    scene = Scene()
    scene.domain = Domain(scene.clock)
    handle = scene.queue(scene.stream(), "asked", 0, 0)
    assert [handle.done for _ in range(3)] == [False, False, True]


# Waiting.


def test_a_timeout_changes_no_simulated_time(scene: Scene) -> None:
    stop: list[int] = []

    def steps() -> Steps:
        while not stop:
            scene.domain.now += 1
            yield

    endless: Handle[None] = Handle("endless", scene.domain)
    with scene.clock:
        scene.stream().submit(endless, steps)
    for timeout in (0, 0.01):
        with pytest.raises(errors.WaitTimeoutError, match=f"endless is not over after {timeout} s"):
            endless.wait(timeout)
        assert endless.started  # who asks in vain again and again sees it get on
        assert scene.domain.program_now == 0
    stop.append(1)
    endless.wait()
    assert scene.domain.program_now == endless.ended > 0


def test_what_ends_in_the_last_step_before_a_timeout_has_ended_in_time(scene: Scene) -> None:
    assert scene.queue(scene.stream(), "short").wait(0) == "short"


def test_a_timeout_may_be_longer_than_any_wait(scene: Scene) -> None:
    for timeout in (float("inf"), 1e300):
        assert scene.queue(scene.stream(), "queued", 5).wait(timeout) == "queued"


def test_tasks_queue_before_anything_is_carried_out(scene: Scene) -> None:
    async def program(name: str, cycles: int) -> str:
        return await scene.queue(scene.stream(), name, cycles, cycles)

    async def programs() -> list[str]:
        return await asyncio.gather(program("one", 20), program("other", 5))

    assert asyncio.run(programs()) == ["one", "other"]
    assert scene.log == [("one", 0), ("other", 0), ("other", 5), ("one", 20)]


def test_a_task_that_is_cancelled_leaves_what_it_awaits(scene: Scene) -> None:
    handle = scene.queue(scene.stream(), "awaited", 5)

    async def awaiting() -> None:
        await handle

    async def program() -> None:
        task = asyncio.create_task(awaiting())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(program())
    assert not scene.log
    assert handle.wait() == "awaited"


# Callbacks.


def test_a_callback_is_called_in_the_waiting_thread_without_the_lock(scene: Scene) -> None:
    stream = scene.stream()
    outcomes: list[object] = []

    def callback() -> None:
        with ThreadPoolExecutor(1) as pool:
            outcomes.append(pool.submit(scene.call, "elsewhere", 1).result(SECONDS))
        outcomes.append(threading.get_ident())
        queued = scene.queue(stream, "queued", 3)
        for wait in (queued.wait, lambda: scene.call("direct", 1)):
            with pytest.raises(errors.DeadlockError, match="a callback waits for"):
                wait()
        now = scene.domain.program_now
        outcomes.append((queued.done, scene.domain.program_now - now))

    scene.queue(stream, "operation", 10).add_done_callback(callback)
    stream.wait()
    assert outcomes == ["elsewhere", threading.get_ident(), (False, QUESTION)]
    stream.wait()
    assert scene.log[-1][0] == "queued"


def test_callbacks_of_two_threads_are_told_apart(scene: Scene) -> None:
    """One begins while another's is called, and ends after it."""
    second_called, first_over = threading.Event(), threading.Event()
    waiting: list[Future[str]] = []

    def first() -> None:
        handle = scene.queue(scene.stream(), "second", 5)
        handle.add_done_callback(second)
        waiting.append(pool.submit(handle.wait))
        assert second_called.wait(SECONDS)

    def second() -> None:
        second_called.set()
        assert first_over.wait(SECONDS)

    with ThreadPoolExecutor(1) as pool:
        handle = scene.queue(scene.stream(), "first", 5)
        handle.add_done_callback(first)
        handle.wait()
        first_over.set()
        assert waiting[0].result(SECONDS) == "second"
    assert scene.call("again", 5) == "again"


def test_what_a_callback_queues_begins_at_the_end_that_it_was_called_for(scene: Scene) -> None:
    queued: list[Handle[str]] = []
    first = scene.queue(scene.stream(), "first", 20)
    first.add_done_callback(lambda: queued.append(scene.queue(scene.stream(), "second", 5)))
    scene.queue(scene.stream(), "longer", 10, 10, 10).wait()
    assert queued[0].wait() == "second"
    assert (queued[0].began, scene.domain.program_now) == (20, 30)


def test_a_callback_that_is_removed_or_late(scene: Scene) -> None:
    called: list[str] = []
    handle = scene.queue(scene.stream(), "operation", 10)
    remove = lambda: called.append("removed")  # noqa: E731
    handle.add_done_callback(remove)
    handle.remove_done_callback(remove)
    handle.wait()
    assert not called
    handle.add_done_callback(lambda: called.append("late"))
    assert called == ["late"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_callback_may_end_the_program(scene: Scene, kind: type[BaseException]) -> None:
    def callback() -> None:
        raise kind

    scene.queue(scene.stream(), "first", 5).add_done_callback(callback)
    behind = scene.queue(scene.stream(), "second", 5, 5)
    with pytest.raises(kind):
        behind.wait()
    assert behind.wait() == "second"


# Interrupts.


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_is_taken_after_the_step(scene: Scene) -> None:
    outcomes = []
    for then in (None, interrupt):
        scene = Scene()
        stream = scene.stream()
        handles = [
            scene.queue(stream, "before", 5),
            scene.queue(stream, "interrupted", 10, then=then),
            scene.queue(stream, "behind", 20),
            scene.queue(scene.stream(), "beside", 7, 7, 7),
        ]
        if then is not None:
            with pytest.raises(KeyboardInterrupt):
                stream.wait()
            assert handles[1].over
            assert handles[1].result == "interrupted"
            assert stream.queued == 1
            assert scene.domain.program_now == 0
        for handle in handles:
            handle.wait()
        outcomes.append([(each.began, each.ended) for each in handles])
    assert outcomes[1] == outcomes[0]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("stop", range(1, 130, 3))
def test_an_interrupt_of_a_call_leaves_the_clock_free(stop: int) -> None:
    """After any number of instructions in the clock's own code."""
    device = Axdimm("golden:tiny")
    passed = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal passed
        if frame.f_code.co_filename == clock.__file__:
            frame.f_trace_opcodes = True
            passed += event == "opcode"
            if passed == stop:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    with suppress(KeyboardInterrupt):
        try:
            sys.settrace(trace)  # type: ignore[arg-type]
            device.MallocAxdimm(64, 0)
        finally:
            sys.settrace(before)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(device.MallocAxdimm, 64, 0).result(SECONDS)
    device.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_freed_while_a_call_begins_leaves_interrupts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by garbage collection, just when interrupts are kept."""
    freed: list[bool] = []
    install = signal.signal

    def interpose(number: int, handler: object) -> object:
        before = install(number, handler)  # type: ignore[arg-type]
        if not freed:
            freed.append(True)
            scene.clock.release(lambda: freed.append(True))
        return before

    monkeypatch.setattr(signal, "signal", interpose)
    assert scene.call("call", 5) == "call"
    assert freed == [True, True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_is_interrupted_while_others_call_gives_back_nothing(scene: Scene) -> None:
    """A second interrupt, while the lock that callbacks were called without is another's."""
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with scene.clock:
            entered.set()
            assert leave.wait(SECONDS)

    with ThreadPoolExecutor(1) as pool:

        def callback() -> None:
            pool.submit(other)
            assert entered.wait(SECONDS)
            signal.raise_signal(signal.SIGINT)

        def interrupted_again() -> None:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        scene.queue(scene.stream(), "first", 5).add_done_callback(callback)
        last = scene.queue(scene.stream(), "last", 5, 5)
        timer = threading.Timer(0.3, interrupted_again)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            last.wait()
        timer.join()
        leave.set()
    assert last.wait() == "last"


def test_an_interrupt_is_taken_when_asking(scene: Scene) -> None:
    handle = scene.queue(scene.stream(), "interrupted", 1, then=interrupt)
    with pytest.raises(KeyboardInterrupt):
        _ = handle.done
    assert handle.done


def test_a_direct_call_that_is_interrupted_is_abandoned() -> None:
    class Interrupting(TransportWrapper):
        interrupts = True

        def write_steps(
            self, channel: int, address: int, data: Bytes
        ) -> Generator[None, None, None]:
            if self.interrupts and channel == 0:
                interrupt()
            yield
            yield from super().write_steps(channel, address, data)

    transport = Interrupting(GoldenTransport())
    with Axdimm(transport) as device:
        pointer = device.MallocAxdimm(64, 0)
        beside = device.SetArbiterAcc(1, stream=device.stream(1))
        with pytest.raises(KeyboardInterrupt):
            device.MemcpyHost2Axdimm(pointer, b"\1" * 64, 64)
        transport.interrupts = False
        # The channel is free, and so is the allocation.
        data = bytearray(64)
        device.MemcpyAxdimm2Host(data, pointer, 64)
        assert data == bytes(64)
        device.FreeAxdimm(pointer)
        beside.wait()


# Threads and processes.


def test_whole_calls_of_threads_are_one_at_a_time(scene: Scene) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(SECONDS)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(scene.call, "first", 5, then=hold)
        assert begun.wait(SECONDS)
        second = pool.submit(scene.call, "second", 5)
        with pytest.raises(TimeoutError):
            second.result(0.05)
        # Who waits with a timeout does not wait for the other thread longer.
        with pytest.raises(errors.WaitTimeoutError):
            Handle[None]("third", scene.domain).wait(0.01)
        go_on.set()
        assert [first.result(SECONDS), second.result(SECONDS)] == ["first", "second"]
    assert scene.log == [("first", 0), ("second", 5)]


def test_what_is_postponed_is_done_after_the_next_call(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[type] = []
    monkeypatch.setattr("sys.excepthook", lambda kind, *_: reported.append(kind))
    done: list[str] = []
    scene.clock.postpone(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    scene.clock.postpone(lambda: done.append(scene.queue(scene.stream(), "queued", 1).label))
    assert not done
    with scene.clock:
        assert not done
    assert done == ["queued"]
    assert reported == [ZeroDivisionError]


def test_a_fork_has_no_clock(scene: Scene) -> None:
    handle = scene.queue(scene.stream(), "queued", 5)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def call() -> None:
        try:
            answers.put(handle.wait())
        except errors.ClosedError as error:
            answers.put(str(error))

    child = context.Process(target=call)
    child.start()
    assert f"process {os.getpid()}, and this process {child.pid} is a fork" in answers.get()
    child.join(SECONDS)
    assert handle.wait() == "queued"


# Several devices.


def test_devices_of_one_clock_share_their_time() -> None:
    clock = Clock()
    with (
        Axdimm("cycles:tiny", clock=clock) as slow,
        Axdimm("cycles:axdimm_ddr4_2400", clock=clock) as fast,
        Axdimm("cycles:tiny") as other,
    ):
        assert slow.transport.fabric_mhz < fast.transport.fabric_mhz
        others_ns = other.simulated_ns
        copy = slow.MemcpyHost2Axdimm(
            slow.MallocAxdimm(4096, 0), bytes(4096), 4096, stream=slow.stream(0)
        )
        fast.stream(0).wait_for(copy)
        behind = fast.SetArbiterAcc(0, stream=fast.stream(0))
        behind.wait()
        # Both are in the cycle that is the first from the same picosecond on.
        for device in (slow, fast):
            cycle_ns = 1e3 / device.transport.fabric_mhz
            assert clock.now - 1 <= 1e3 * device.simulated_ns < clock.now + 1e3 * cycle_ns
        assert behind.ended == fast.transport.domain.program_now
        assert copy.ended * slow.transport.domain.cycle_ns <= (
            behind.began * fast.transport.domain.cycle_ns + 0.001
        )
        assert other.simulated_ns == others_ns


def test_devices_of_one_clock_take_turns() -> None:
    clock = Clock()
    slow, fast = Scene(clock, mhz=200), Scene(clock, mhz=300)
    slow.log = fast.log
    slow.queue(slow.stream(), "slow", 2, 2, 2)
    last = fast.queue(fast.stream(), "fast", 2, 2, 2, 2)
    last.wait()
    # Of 5,000 and 3,333 ps: at 20,000 ps, it is the sixth cycle of one and the fourth of the other.
    assert fast.log == [
        ("slow", 0),
        ("fast", 0),
        ("fast", 2),
        ("slow", 2),
        ("fast", 4),
        ("slow", 4),
        ("fast", 6),
    ]
    assert clock.now == fast.domain.ticks(8) == 26_666
    assert slow.domain.program_now == 6


def test_closing_a_device_ends_its_operations_at_their_time_and_no_others() -> None:
    clock = Clock()
    closed, open_ = Scene(clock, mhz=200), Scene(clock, mhz=300)
    left: list[int] = []

    def steps() -> Steps:
        try:
            closed.domain.now += 20
            yield
            yield
        finally:
            left.append(closed.domain.now)

    ended: Handle[None] = Handle("ended", closed.domain)
    with clock:
        closed.stream().submit(ended, steps)
    other = open_.queue(open_.stream(), "other", 40, 40)
    assert not ended.done
    with clock:
        clock.close(closed.domain)
    with pytest.raises(errors.ClosedError, match="closed during ended"):
        ended.wait()
    assert left == [20]
    assert other.wait() == "other"


# Links.


@pytest.fixture
def link() -> ReservedLink:
    """Of which 10 to 20 and 30 to 40 are used."""
    link = ReservedLink()
    assert link.reserve(10, 10) == 10
    assert link.reserve(30, 10) == 30
    return link


def used_cycles(link: ReservedLink) -> set[int]:
    return {cycle for cycle in range(60) if link.first_free(cycle, 1) > cycle}


@pytest.mark.parametrize(
    ("not_before", "duration", "start"),
    [(0, 10, 0), (0, 11, 40), (5, 5, 5), (6, 5, 20), (15, 10, 20), (20, 11, 40), (35, 1, 40)],
)
def test_a_link_is_reserved_where_it_is_free(
    link: ReservedLink, not_before: int, duration: int, start: int
) -> None:
    assert link.first_free(not_before, duration) == start
    before = used_cycles(link)
    assert link.reserve(not_before, duration) == start
    assert used_cycles(link) == before | set(range(start, start + duration))


def test_a_link_is_granted_as_far_as_it_is_free(link: ReservedLink) -> None:
    assert link.grant(15, 4, 5) == (20, 2)
    assert link.grant(20, 4, 5) == (40, 5)
    assert link.grant(0, 4, 1) == (0, 1)
    assert link.first_free(0, 2) == 4
    assert link.first_free(20, 2) == 28
    assert link.first_free(20, 3) == 60


def test_what_lies_far_back_is_taken_to_have_been_in_use() -> None:
    link = ReservedLink()
    for use in range(REMEMBERED_USES):
        link.reserve(10 * use + 5, 1)
    assert link.first_free(0, 5) == 0
    link.reserve(10 * REMEMBERED_USES + 5, 1)
    assert link.first_free(0, 5) == 6


def test_links_are_free_together(link: ReservedLink) -> None:
    other = ReservedLink("other")
    other.reserve(20, 5)
    assert first_free_together({link: 8, other: 12}, 0) == 0
    assert first_free_together({link: 8, other: 12}, 3) == 40
    assert first_free_together({}, 7) == 7
