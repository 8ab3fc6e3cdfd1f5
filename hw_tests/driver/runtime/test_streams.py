"""Streams and handles: order, failure, waiting in threads and asyncio, and that no wait hangs."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hw_tests.driver.adam import adam_constants, adam_step
from hw_tests.driver.transports import WatchedTransport
from sw_driver.axdimm import Axdimm, AxdimmPointer, Mode
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.axdimm.runs import RunResult
from sw_driver.device import errors
from sw_driver.device.transport import DeviceTimeout, kernel_window
from sw_driver.runtime.handles import Handle
from sw_driver.runtime.streams import Stream
from sw_driver.runtime.wrapper import TransportWrapper

COUNT = 500
NBYTES = 4 * COUNT
HYPER: dict[str, Any] = {
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.01,
}
SECONDS = 60


def tensors(device: Axdimm, channel: int = 0) -> dict[str, AxdimmPointer]:
    return {name: device.MallocAxdimm(NBYTES, channel) for name in "pmvg"}


def test_a_streams_operations_follow_each_other(device: Axdimm) -> None:
    rng = np.random.default_rng(1)
    values = {name: np.abs(rng.standard_normal(COUNT)).astype(np.float32) for name in "pgmv"}
    out = {channel: np.empty(COUNT, np.float32) for channel in range(device.channels)}
    handles = []
    for channel in range(device.channels):
        pointers = tensors(device, channel)
        stream = device.stream(channel)
        assert device.stream(channel) is stream
        for name, pointer in pointers.items():
            handles.append(device.MemcpyHost2Axdimm(pointer, values[name], NBYTES, stream=stream))
        for step in (1, 2):
            handles.append(device.SetArbiterAcc(channel, stream=stream))
            handles.append(
                device.RunAdamOnAxdimmAsync(
                    **pointers, nparams=COUNT, **HYPER, t=step, channel=channel, stream=stream
                )
            )
            handles.append(device.SetArbiterNormal(channel, stream=stream))
        handles.append(device.MemcpyAxdimm2Host(out[channel], pointers["p"], NBYTES, stream=stream))
    for channel in range(device.channels):
        device.stream(channel).wait(SECONDS)
        assert device.WaitAxdimm(channel) is not None
    p, m, v = values["p"], values["m"], values["v"]
    for step in (1, 2):
        constants = adam_constants(**HYPER, t=step)
        p, m, v = adam_step(p, values["g"], m, v, constants)
    for channel in range(device.channels):
        assert np.array_equal(out[channel].view(np.uint32), p.view(np.uint32))
    assert all(handle.done and not handle.failed for handle in handles)
    half = len(handles) // 2
    for one, other in pairwise(handles[:half]):
        assert 0 <= one.began <= one.ended <= other.began
    assert isinstance(handles[5].wait(), RunResult)


def test_a_stream_waits_for_anothers_handle(device: Axdimm, watched: WatchedTransport) -> None:
    pointers = tensors(device)
    for pointer in pointers.values():
        device.MemcpyHost2Axdimm(pointer, np.ones(COUNT, np.float32), NBYTES)
    watched.hold()
    first, second = device.stream(0), device.new_stream("copies")
    run = device.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=1, channel=0, stream=first, modes="wait"
    )
    out = np.zeros(COUNT, np.float32)
    waiting = second.wait_for(run)
    copy = device.MemcpyAxdimm2Host(out, pointers["p"], NBYTES, stream=second, modes="wait")
    time.sleep(0.05)
    assert not run.done
    assert not waiting.done
    assert not copy.started
    assert second.queued == 2
    with pytest.raises(errors.BusyError, match="MemcpyAxdimm2Host"):
        device.FreeAxdimm(pointers["p"])
    with pytest.raises(errors.BusyError, match=f"{COUNT} parameters"):
        device.FreeAxdimm(pointers["g"])
    watched.release()
    second.wait(SECONDS)
    assert run.ended <= copy.began
    assert out[0] < 1
    assert device.mode(0) is Mode.NORMAL
    device.FreeAxdimm(pointers["p"])


def test_what_is_queued_behind_a_failure_is_not_carried_out(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(64, 0)
    device.MemcpyHost2Axdimm(pointer, bytes(64), 64)
    stream = device.stream(0)
    good = device.SetArbiterAcc(0, stream=stream)
    wrong = device.MemcpyHost2Axdimm(pointer, b"\1" * 64, 64, stream=stream)
    behind = device.SetArbiterNormal(0, stream=stream)
    with pytest.raises(errors.WrongModeError):
        wrong.wait(SECONDS)
    with pytest.raises(errors.StreamFailedError, match="MemcpyHost2Axdimm") as caught:
        behind.wait(SECONDS)
    assert isinstance(caught.value.__cause__, errors.WrongModeError)
    good.wait(SECONDS)
    with pytest.raises(errors.WrongModeError):
        stream.wait(SECONDS)
    assert device.mode(0) is Mode.ACCELERATION
    with pytest.raises(errors.StreamFailedError, match="recover"):
        device.SetArbiterNormal(0, stream=stream)
    assert isinstance(stream.failure, errors.WrongModeError)
    stream.recover()
    device.SetArbiterNormal(0, stream=stream).wait(SECONDS)
    stream.wait()
    out = bytearray(64)
    device.MemcpyAxdimm2Host(out, pointer, 64)
    assert out == bytes(64)
    device.FreeAxdimm(pointer)


@pytest.mark.parametrize("backend", ["cycles:tiny", "rtl:tiny"])
def test_who_waits_for_a_stream_goes_on_at_its_end(backend: str) -> None:
    with Axdimm(backend) as device:
        pointer = device.MallocAxdimm(1000, 0)
        stream = device.new_stream("other")
        handle = device.MemcpyHost2Axdimm(pointer, bytes(1000), 1000, stream=stream)
        while stream.queued:  # that it is over is no reason not to wait
            time.sleep(0.001)
        assert device.simulated_ns < handle.ended * 5
        stream.wait()
        assert device.simulated_ns == handle.ended * 5


def test_a_failed_handle_fails_the_stream_that_waits_for_it(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(64, 0)
    device.SetArbiterAcc(0)
    wrong = device.MemcpyHost2Axdimm(pointer, bytes(64), 64, stream=device.stream(0))
    other = device.new_stream("other")
    other.wait_for(wrong)
    with pytest.raises(errors.WrongModeError):
        other.wait(SECONDS)


@pytest.mark.parametrize("what", [None, 3, "handle", threading.Event()])
def test_what_is_no_handle_is_refused(device: Axdimm, what: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=type(what).__name__):
        device.stream(0).wait_for(what)
    with Axdimm(GoldenTransport()) as other:
        foreign = other.SetArbiterNormal(0)
        with pytest.raises(errors.InvalidArgumentError):
            device.stream(0).wait_for(foreign)
        with pytest.raises(errors.InvalidArgumentError):
            device.SetArbiterNormal(0, stream=other.stream(0))


def test_handles_are_awaited_in_asyncio(device: Axdimm, watched: WatchedTransport) -> None:
    pointers = tensors(device)
    for pointer in pointers.values():
        device.MemcpyHost2Axdimm(pointer, np.ones(COUNT, np.float32), NBYTES)

    async def program() -> None:
        stream = device.stream(0)
        watched.hold()
        run = device.RunAdamOnAxdimmAsync(
            **pointers, nparams=COUNT, **HYPER, t=1, channel=0, stream=stream, modes="wait"
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(_await(run)), 0.05)
        assert not run.done
        watched.release()
        result = await run
        assert result.nparams == COUNT
        # What is over can be awaited as well, and by many.
        results = await asyncio.gather(*(_await(run) for _ in range(5)))
        assert all(each is result for each in results)
        device.SetArbiterAcc(0)
        with pytest.raises(errors.WrongModeError):
            await device.MemcpyHost2Axdimm(pointers["p"], bytes(64), 64, stream=stream)

    async def _await(handle: Any) -> Any:
        return await handle

    asyncio.run(program())


def test_waiting_with_a_timeout(device: Axdimm, watched: WatchedTransport) -> None:
    pointers = tensors(device)
    device.SetArbiterAcc(0)
    watched.hold()
    run = device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **HYPER, t=1, channel=0)
    assert run.started
    assert 0 <= run.progress.fraction < 1
    assert "0 of 500 parameters" in repr(run)
    with pytest.raises(errors.WaitTimeoutError, match="of 500 parameters done") as caught:
        run.wait(0.02)
    assert caught.value.details["total"] == COUNT
    assert isinstance(caught.value, TimeoutError)
    watched.release()
    assert run.wait(SECONDS).nparams == COUNT
    assert run.progress.fraction == 1
    called = threading.Event()
    run.add_done_callback(called.set)
    assert called.is_set()


def test_an_access_waits_for_the_running_kernel_if_told_to(
    device: Axdimm, watched: WatchedTransport
) -> None:
    pointers = tensors(device)
    for pointer in pointers.values():
        device.MemcpyHost2Axdimm(pointer, np.ones(COUNT, np.float32), NBYTES)
    watched.hold()
    run = device.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=1, channel=0, modes="wait"
    )
    out = np.empty(COUNT, np.float32)
    with pytest.raises(errors.BusyError):
        device.MemcpyAxdimm2Host(out, pointers["p"], NBYTES)
    copy = threading.Thread(
        target=device.MemcpyAxdimm2Host,
        args=(out, pointers["p"], NBYTES),
        kwargs={"modes": "wait"},
    )
    copy.start()
    copy.join(0.05)
    assert copy.is_alive()
    assert not run.done
    watched.release()
    copy.join(SECONDS)
    assert run.done
    assert device.mode(0) is Mode.NORMAL
    expected, *_ = adam_step(*[np.ones(COUNT, np.float32)] * 4, adam_constants(**HYPER, t=1))
    assert np.array_equal(out, expected)
    # And the other way round.
    device.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=2, channel=0, modes="wait"
    ).wait(SECONDS)
    device.SetArbiterNormal(0, modes="wait")


def test_a_device_may_be_told_for_all_calls(watched: WatchedTransport) -> None:
    with Axdimm(watched, modes="wait") as device:
        pointers = tensors(device)
        run = None
        for step in range(1, 4):
            device.MemcpyHost2Axdimm(pointers["g"], np.ones(COUNT, np.float32), NBYTES)
            run = device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **HYPER, t=step, channel=0)
        out = np.empty(COUNT, np.float32)
        device.MemcpyAxdimm2Host(out, pointers["p"], NBYTES)
        assert run is not None
        assert run.done
        device.SetArbiterAcc(0)
        with pytest.raises(errors.WrongModeError):
            device.MemcpyAxdimm2Host(out, pointers["p"], NBYTES, modes="raise")
        device.SetArbiterNormal(0)


class _NeverDone(TransportWrapper):
    """The kernel's status is never answered, or never says that it is done."""

    hang = True

    def __init__(self, inner: GoldenTransport) -> None:
        super().__init__(inner)
        self.let_go = threading.Event()

    def poll(self, channel: int, address: int, mask: int, value: int, **times: Any) -> int:
        if address == kernel_window(self.capacity_bytes) + 0x40:
            if self.hang:
                self.let_go.wait(SECONDS)
            raise DeviceTimeout("busy")
        return super().poll(channel, address, mask, value, **times)


@pytest.mark.parametrize("way", ["wait", "asyncio", "stream", "copy", "close"])
def test_a_device_that_does_not_answer_ends_in_a_timeout_with_its_state(way: str) -> None:
    transport = _NeverDone(GoldenTransport())
    device = Axdimm(transport, stall_timeout_s=0.2)
    pointers = tensors(device)
    stream = device.stream(0)
    device.SetArbiterAcc(0)
    run = device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **HYPER, t=1, channel=0)
    copy = device.MemcpyHost2Axdimm(pointers["g"], bytes(64), 64, stream=stream, modes="wait")

    async def awaited() -> None:
        await run

    ways: dict[str, Any] = {
        "wait": run.wait,
        "asyncio": lambda: asyncio.run(awaited()),
        "stream": stream.wait,
        "copy": copy.wait,
        "close": device.close,
    }
    with pytest.raises(errors.DeviceTimeoutError, match="acceleration mode, kernel not seen idle"):
        ways[way]()
    transport.let_go.set()
    device.close()


def test_a_run_that_never_ends_is_given_up_with_the_devices_state() -> None:
    transport = _NeverDone(GoldenTransport())
    transport.hang = False
    with Axdimm(transport) as device:
        pointers = tensors(device)
        run = device.RunAdamOnAxdimmAsync(
            **pointers, nparams=COUNT, **HYPER, t=1, channel=0, modes="wait",
            timeout_fabric_cycles=12345,
        )  # fmt: skip
        with pytest.raises(errors.DeviceTimeoutError, match="acceleration mode") as caught:
            run.wait(SECONDS)
        assert "channel 0" in str(caught.value.details["state"])
        assert caught.value.details["status"] is not None


def test_closing_ends_what_is_queued(device: Axdimm) -> None:
    transport = WatchedTransport(GoldenTransport())
    other = Axdimm(transport)
    pointers = tensors(other)
    other.SetArbiterAcc(0)
    transport.hold()
    stream = other.stream(0)
    run = other.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=1, channel=0, stream=stream
    )
    deadline = time.monotonic() + SECONDS
    while other.PollAxdimm(0) and time.monotonic() < deadline:
        time.sleep(0.001)
    queued = [other.SetArbiterNormal(0, stream=stream) for _ in range(3)]
    closing = threading.Thread(target=other.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    transport.release()
    closing.join(SECONDS)
    assert run.wait(SECONDS).nparams == COUNT
    for handle in queued:
        with pytest.raises(errors.ClosedError):
            handle.wait(SECONDS)
    with pytest.raises(errors.ClosedError):
        other.SetArbiterNormal(0, stream=stream)


def _use(calls: list[Callable[[], Any]], answers: Any) -> None:
    for call in calls:
        try:
            call()
        except errors.ClosedError as error:
            answers.put(str(error))
        else:
            answers.put("no error")


def test_a_fork_cannot_use_its_parents_device() -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with Axdimm(GoldenTransport()) as device:
        stream = device.stream(0)
        done = device.SetArbiterNormal(0)
        with device.queueing():
            queued = device.SetArbiterNormal(0, stream=stream)
            calls = [
                lambda: device.MallocAxdimm(64, 0),
                queued.wait,
                stream.wait,
                lambda: stream.wait_for(done),
                lambda: device.SetArbiterAcc(0, stream=stream),
            ]
            child = context.Process(target=_use, args=(calls, answers))
            child.start()
            for _ in calls:
                assert "fork" in answers.get(timeout=SECONDS)
            child.join(SECONDS)
        stream.wait(SECONDS)
        device.MallocAxdimm(64, 0)
    answers.close()


# Callbacks run in a thread of their own: they may wait, raise and close.


def test_a_callback_may_raise(
    device: Axdimm, monkeypatch: pytest.MonkeyPatch, watched: WatchedTransport
) -> None:
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda told: reported.append(told.exc_type))
    pointers = tensors(device)
    device.SetArbiterAcc(0)
    watched.hold()
    run = device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **HYPER, t=1, channel=0)
    queued = device.SetArbiterNormal(0, stream=device.stream(0), modes="wait")
    called = {handle: threading.Event() for handle in (run, queued)}
    for handle, event in called.items():
        handle.add_done_callback(lambda: 1 / 0)
        handle.add_done_callback(event.set)
    watched.release()
    assert run.wait(SECONDS).nparams == COUNT
    queued.wait(SECONDS)
    assert all(event.wait(SECONDS) for event in called.values())
    device.SetArbiterNormal(0, stream=device.stream(0)).wait(SECONDS)
    device.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=2, channel=0, modes="wait"
    ).wait(SECONDS)
    assert set(reported) == {ZeroDivisionError}


def test_a_callback_may_queue_and_wait(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(64, 0)
    one, other = device.stream(0), device.new_stream("other")
    results: list[int] = []

    def callback() -> None:
        device.MemcpyHost2Axdimm(pointer, bytes(64), 64, stream=one)
        device.MemcpyHost2Axdimm(pointer, bytes(64), 64, stream=other).wait(SECONDS)
        device.MemcpyHost2Axdimm(pointer, bytes(64), 64)
        results.append(one.queued)

    with device.queueing():
        device.MemcpyHost2Axdimm(pointer, bytes(64), 64, stream=one).add_done_callback(callback)
        device.MemcpyHost2Axdimm(pointer, bytes(64), 64, stream=other)
    deadline = time.monotonic() + SECONDS
    while not results and time.monotonic() < deadline:
        time.sleep(0.001)
    assert results
    one.wait(SECONDS)


def test_blocks_of_queueing_in_each_other_are_one(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(64, 0)
    streams = [device.new_stream(str(number)) for number in range(3)]

    def copy(number: int) -> Handle[None]:
        return device.MemcpyHost2Axdimm(pointer, bytes(64), 64, stream=streams[number])

    with device.queueing():
        with device.queueing():
            inner = copy(0)
        outer = copy(1)
        time.sleep(0.2)  # longer than what is not held waits for more
        assert not inner.started
        assert not outer.started
    inner.wait(SECONDS)
    outer.wait(SECONDS)
    with device.queueing():
        copy(2)
    streams[2].wait(SECONDS)


def test_what_queueing_holds_is_not_waited_for_inside(
    device: Axdimm, watched: WatchedTransport
) -> None:
    pointers = tensors(device)
    other = device.MallocAxdimm(64, 1)

    def copy(stream: Stream | None) -> Handle[None]:
        return device.MemcpyHost2Axdimm(other, bytes(64), 64, stream=stream, modes="wait")

    async def awaits(handle: Handle[None]) -> None:
        await handle

    first, second, busy, idle = (device.new_stream(name) for name in ("1", "2", "3", "4"))
    watched.hold()
    run = device.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=1, channel=0, modes="wait"
    )
    busy.wait_for(run)
    before = copy(first)
    with device.queueing():
        copy(None)
        before.wait(SECONDS)
        idle.wait(SECONDS)
        held = copy(second)
        behind = copy(second)
        waiting = busy.wait_for(held)
        calls: list[tuple[str, Callable[[], Any]]] = [
            ("MemcpyHost2Axdimm", held.wait),
            ("MemcpyHost2Axdimm", lambda: held.wait(0)),
            ("MemcpyHost2Axdimm", behind.wait),
            ("MemcpyHost2Axdimm", second.wait),
            ("MemcpyHost2Axdimm", lambda: asyncio.run(awaits(held))),
            ("wait for MemcpyHost2Axdimm", waiting.wait),
            ("wait for MemcpyHost2Axdimm", busy.wait),
            ("give it a stream", lambda: copy(None)),
            ("give it a stream", lambda: device.SetArbiterAcc(1)),
            (
                "give it a stream",
                lambda: device.RunAdamOnAxdimmAsync(
                    **pointers, nparams=COUNT, **HYPER, t=2, channel=0, modes="wait"
                ),
            ),
        ]
        for said, call in calls:
            with pytest.raises(errors.QueueingError, match=said):
                call()
        # Another thread may wait: it keeps nobody from leaving the block.
        elsewhere = threading.Thread(target=held.wait, args=(SECONDS,))
        elsewhere.start()
    elsewhere.join(SECONDS)
    assert held.done
    watched.release()
    for _, call in calls:
        call()
    device.WaitAxdimm(0, SECONDS)


@pytest.mark.parametrize("timeout", [-1, -1e-9, float("nan"), "1"])
def test_no_wait_takes_less_than_no_time(device: Axdimm, timeout: Any) -> None:
    handle = device.SetArbiterNormal(0, stream=device.stream(0))
    calls: list[Callable[[], Any]] = [
        lambda: handle.wait(timeout),
        lambda: device.stream(0).wait(timeout),
        lambda: device.new_stream("idle").wait(timeout),
        lambda: device.WaitAxdimm(1, timeout),
    ]
    for call in calls:
        with pytest.raises(
            errors.InvalidArgumentError, match=f"timeout is {timeout!r}: .*0 or more"
        ):
            call()
    handle.wait(SECONDS)


def test_a_callback_may_close_the_device() -> None:
    device = Axdimm(GoldenTransport(), stall_timeout_s=5)
    over = threading.Event()
    stream = device.stream(0)

    def callback() -> None:
        device.close()
        over.set()

    with device.queueing():
        device.SetArbiterNormal(0, stream=stream).add_done_callback(callback)
    assert over.wait(SECONDS)
    with pytest.raises(errors.ClosedError):
        device.MallocAxdimm(64, 0)


def test_closing_waits_for_a_callback_that_is_refused() -> None:
    device = Axdimm(GoldenTransport(), stall_timeout_s=5)
    pointer = device.MallocAxdimm(64, 0)
    began, refused = threading.Event(), threading.Event()

    def callback() -> None:
        began.set()
        try:
            while True:
                device.MemcpyHost2Axdimm(pointer, bytes(64), 64)
        except errors.ClosedError:
            refused.set()

    device.SetArbiterNormal(0, stream=device.stream(0)).add_done_callback(callback)
    assert began.wait(SECONDS)
    device.close()
    assert refused.is_set()


@pytest.mark.parametrize("timeline", ["", ".", 5, "no/such/folder/trace.json"])
def test_where_a_timeline_cannot_be_written_is_refused_at_once(timeline: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="timeline"):
        Axdimm("cycles:tiny", timeline=timeline)


def test_nothing_is_queued_in_a_closed_device() -> None:
    device = Axdimm(GoldenTransport())
    stream = device.stream(0)
    handle = device.SetArbiterNormal(0)
    device.close()
    with pytest.raises(errors.ClosedError):
        stream.wait_for(handle)
    with pytest.raises(errors.ClosedError):
        device.SetArbiterNormal(0, stream=stream)
    stream.wait()


def test_what_was_queued_behind_a_failure_stays_undone_after_recovery(
    device: Axdimm, watched: WatchedTransport
) -> None:
    pointers = tensors(device)
    device.MemcpyHost2Axdimm(pointers["g"], bytes(64), 64)
    device.SetArbiterAcc(0)
    stream, slow = device.new_stream("failing"), device.stream(0)
    watched.hold()
    run = device.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=1, channel=0, stream=slow
    )
    deadline = time.monotonic() + SECONDS
    while device.PollAxdimm(0) and time.monotonic() < deadline:
        time.sleep(0.001)
    with device.queueing():
        wrong = device.MemcpyHost2Axdimm(pointers["g"], b"\1" * 64, 64, stream=stream)
        waiting = stream.wait_for(run)
        behind = device.MemcpyHost2Axdimm(
            pointers["g"], b"\2" * 64, 64, stream=stream, modes="wait"
        )
    with pytest.raises(errors.BusyError):
        wrong.wait(SECONDS)
    stream.recover()
    watched.release()
    for handle in (waiting, behind):
        with pytest.raises(errors.StreamFailedError):
            handle.wait(SECONDS)
    run.wait(SECONDS)
    data = bytearray(64)
    device.MemcpyAxdimm2Host(data, pointers["g"], 64, modes="wait")
    assert data == bytes(64)
    device.SetArbiterNormal(0, stream=stream).wait(SECONDS)


def test_a_refused_run_does_not_hold_its_tensors(device: Axdimm, watched: WatchedTransport) -> None:
    first, second = tensors(device), tensors(device)
    device.SetArbiterAcc(0)
    watched.hold()
    run = device.RunAdamOnAxdimmAsync(**first, nparams=COUNT, **HYPER, t=1, channel=0)
    with pytest.raises(errors.BusyError):
        device.RunAdamOnAxdimmAsync(**second, nparams=COUNT, **HYPER, t=1, channel=0)
    for pointer in second.values():
        device.FreeAxdimm(pointer)
    watched.release()
    run.wait(SECONDS)
    for pointer in first.values():
        device.FreeAxdimm(pointer)


def test_cancelling_what_awaits_is_never_lost(device: Axdimm) -> None:
    async def program() -> int:
        lost = 0
        for _ in range(200):
            handle = device.SetArbiterNormal(0, stream=device.stream(0))

            async def awaiting(handle: Any = handle) -> None:
                await handle
                await asyncio.sleep(SECONDS)

            task = asyncio.create_task(awaiting())
            await asyncio.sleep(0)
            handle.wait(SECONDS)
            task.cancel()
            try:
                await asyncio.wait_for(task, SECONDS)
                lost += 1
            except asyncio.CancelledError:
                pass
        return lost

    assert asyncio.run(program()) == 0


def test_a_stream_whose_thread_cannot_be_started_is_as_before(
    device: Axdimm, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = device.MallocAxdimm(64, 0)
    stream = device.new_stream("late")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            device.MemcpyHost2Axdimm(pointer, bytes(64), 64, stream=stream)
    assert stream.queued == 0
    device.MemcpyHost2Axdimm(pointer, bytes(64), 64, stream=stream).wait(SECONDS)
    device.FreeAxdimm(pointer)


@pytest.mark.parametrize("field", ["channel", "address", "allocation", "device"])
@pytest.mark.parametrize("value", [2**63 - 64, 200, -1])
def test_forged_pointers_are_refused(device: Axdimm, field: str, value: int) -> None:
    pointer = device.MallocAxdimm(256, 0)
    forged = replace(pointer, **{field: value})
    # An address below the allocation is an ordinary pointer, moved too far.
    refusals = (errors.PointerError, errors.RangeError, errors.InvalidArgumentError)
    calls: list[Callable[[], Any]] = [
        lambda: device.MemcpyHost2Axdimm(forged, bytes(128), 128),
        lambda: device.MemcpyAxdimm2Host(bytearray(128), forged, 128),
        lambda: device.map(forged, 128),
    ]
    for call in calls:
        with pytest.raises(refusals):
            call()
    with pytest.raises(refusals):
        device.FreeAxdimm(forged)
    device.FreeAxdimm(pointer)
