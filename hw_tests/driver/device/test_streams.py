"""Streams and handles: order, failure, progress, and waiting, in asyncio as well."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
from sw_driver.device.streams import Handle

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
    watched.held = True
    first, second = device.stream(0), device.new_stream("copies")
    run = device.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=1, channel=0, stream=first, modes="wait"
    )
    out = np.zeros(COUNT, np.float32)
    waiting = second.wait_for(run)
    copy = device.MemcpyAxdimm2Host(out, pointers["p"], NBYTES, stream=second, modes="wait")
    assert not run.done
    assert not waiting.done
    assert not copy.started
    assert second.queued == 2
    with pytest.raises(errors.BusyError, match="MemcpyAxdimm2Host"):
        device.FreeAxdimm(pointers["p"])
    with pytest.raises(errors.BusyError, match=f"{COUNT} parameters"):
        device.FreeAxdimm(pointers["g"])
    watched.held = False
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
        pointer = device.MallocGpu(1000)
        stream = device.new_stream("other")
        handle = device.MemcpyHost2Gpu(pointer, bytes(1000), 1000, stream=stream)
        device.SetArbiterNormal(0)
        assert not stream.queued  # that it is over is no reason not to wait
        assert device.simulated_ns < handle.ended * 5
        assert not handle.done
        stream.wait()
        assert handle.done
        assert device.simulated_ns == handle.ended * 5


def test_a_failed_handle_fails_the_stream_that_waits_for_it(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(64, 0)
    device.SetArbiterAcc(0)
    wrong = device.MemcpyHost2Axdimm(pointer, bytes(64), 64, stream=device.stream(0))
    other = device.new_stream("other")
    other.wait_for(wrong)
    with pytest.raises(errors.WrongModeError):
        other.wait(SECONDS)


@pytest.mark.parametrize("what", [None, 3, "handle", object()])
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
        watched.held = True
        run = device.RunAdamOnAxdimmAsync(
            **pointers, nparams=COUNT, **HYPER, t=1, channel=0, stream=stream, modes="wait"
        )
        assert not run.done
        watched.held = False
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
    watched.held = True
    run = device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **HYPER, t=1, channel=0)
    assert run.started
    assert 0 <= run.progress.fraction < 1
    assert "0 of 500 parameters" in repr(run)
    with pytest.raises(errors.WaitTimeoutError, match="of 500 parameters done") as caught:
        run.wait(0.02)
    assert caught.value.details["total"] == COUNT
    assert isinstance(caught.value, TimeoutError)
    watched.held = False
    assert run.wait(SECONDS).nparams == COUNT
    assert run.progress.fraction == 1
    called: list[int] = []
    run.add_done_callback(lambda: called.append(1))
    assert called


def test_an_access_waits_for_the_running_kernel_if_told_to(
    device: Axdimm, watched: WatchedTransport
) -> None:
    pointers = tensors(device)
    for pointer in pointers.values():
        device.MemcpyHost2Axdimm(pointer, np.ones(COUNT, np.float32), NBYTES)
    watched.held = True
    run = device.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=1, channel=0, modes="wait"
    )
    out = np.empty(COUNT, np.float32)
    with pytest.raises(errors.BusyError):
        device.MemcpyAxdimm2Host(out, pointers["p"], NBYTES)
    copy = device.MemcpyAxdimm2Host(
        out, pointers["p"], NBYTES, modes="wait", stream=device.new_stream("copy")
    )
    for _ in range(10):
        assert not copy.done
        assert not run.done
    watched.held = False
    copy.wait(SECONDS)
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
        queued = device.SetArbiterNormal(0, stream=stream)
        calls = [
            lambda: device.MallocAxdimm(64, 0),
            lambda: device.SetArbiterAcc(0),
            queued.wait,
            lambda: queued.done,
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


def test_a_callback_may_raise(
    device: Axdimm, monkeypatch: pytest.MonkeyPatch, watched: WatchedTransport
) -> None:
    reported = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: reported.append(kind))
    pointers = tensors(device)
    device.SetArbiterAcc(0)
    watched.held = True
    run = device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **HYPER, t=1, channel=0)
    queued = device.SetArbiterNormal(0, stream=device.stream(0), modes="wait")
    called: list[Handle[Any]] = []
    for handle in (run, queued):
        handle.add_done_callback(lambda: 1 / 0)
        handle.add_done_callback(partial(called.append, handle))
    watched.held = False
    assert run.wait(SECONDS).nparams == COUNT
    queued.wait(SECONDS)
    assert called == [run, queued]
    device.SetArbiterNormal(0, stream=device.stream(0)).wait(SECONDS)
    device.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=2, channel=0, modes="wait"
    ).wait(SECONDS)
    assert reported == [ZeroDivisionError] * 2


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


@pytest.mark.parametrize("timeline", ["", ".", 5, "no/such/folder/trace.json"])
def test_where_a_timeline_cannot_be_written_is_refused_at_once(timeline: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="timeline"):
        Axdimm("cycles:tiny", timeline=timeline)


def test_what_was_queued_behind_a_failure_stays_undone_after_recovery(
    device: Axdimm, watched: WatchedTransport
) -> None:
    pointers = tensors(device)
    device.MemcpyHost2Axdimm(pointers["g"], bytes(64), 64)
    device.SetArbiterAcc(0)
    stream, slow = device.new_stream("failing"), device.stream(0)
    watched.held = True
    run = device.RunAdamOnAxdimmAsync(
        **pointers, nparams=COUNT, **HYPER, t=1, channel=0, stream=slow
    )
    while device.PollAxdimm(0):  # until it has begun
        assert not run.done
    wrong = device.MemcpyHost2Axdimm(pointers["g"], b"\1" * 64, 64, stream=stream)
    waiting = stream.wait_for(run)
    behind = device.MemcpyHost2Axdimm(pointers["g"], b"\2" * 64, 64, stream=stream, modes="wait")
    with pytest.raises(errors.BusyError):
        wrong.wait(SECONDS)
    stream.recover()
    watched.held = False
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
    watched.held = True
    run = device.RunAdamOnAxdimmAsync(**first, nparams=COUNT, **HYPER, t=1, channel=0)
    with pytest.raises(errors.BusyError):
        device.RunAdamOnAxdimmAsync(**second, nparams=COUNT, **HYPER, t=1, channel=0)
    for pointer in second.values():
        device.FreeAxdimm(pointer)
    watched.held = False
    run.wait(SECONDS)
    for pointer in first.values():
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
