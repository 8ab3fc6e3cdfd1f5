"""Calls past the driver, of several threads and between the driver's steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.registers import arbiter_registers
from sw_driver.axdimm.transport import kernel_window
from sw_driver.device.clock import Clock
from sw_driver.device.errors import ClosedError, DeadlockError
from sw_driver.device.transport import DeviceFault, DeviceTimeout

LINE = 64
MAGIC = 0x4E445841
TIMED = ["cycles:tiny", "rtl:tiny"]
BACKENDS = ["golden:tiny", *TIMED]


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """Make each call in a thread; return the results, or what was raised."""
    outcomes: list[Any] = [None] * len(calls)

    def made(place: int) -> None:
        try:
            outcomes[place] = calls[place]()
        except BaseException as error:
            outcomes[place] = error

    threads = [threading.Thread(target=made, args=[n], daemon=True) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


def identify(device: Axdimm, channel: int, times: int) -> set[int]:
    """Return what the identification register reads, between polls that end in vain."""
    registers = arbiter_registers(device.transport, channel)
    found = set()
    for interval in [0, 4000] * times:
        with pytest.raises(DeviceTimeout):
            device.transport.poll(
                channel, registers.address("status"), 1 << 60, 1 << 60,
                interval_fabric_cycles=interval, timeout_fabric_cycles=6000,
            )  # fmt: skip
        found.add(registers.read("id") & 0xFFFFFFFF)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_with_a_channel_each(backend: str) -> None:
    with Axdimm(backend) as device:
        calls = [partial(identify, device, channel, 40) for channel in (0, 1)]
        assert in_threads(*calls) == [{MAGIC}, {MAGIC}]


@pytest.mark.parametrize("backend", TIMED)
def test_one_thread_waits_for_a_run_and_another_reads(backend: str) -> None:
    n = 20_000
    with Axdimm(backend, modes="wait") as device:
        tensors = [device.MallocAxdimm(4 * n, 0) for _ in range(4)]
        for channel in (0, 1):
            step = (n, 1e-3, 0.9, 0.999, 1e-8, 0.0, 1, 0)
            run = device.RunAdamOnAxdimmAsync(*tensors, *step)
            reads = partial(identify, device, channel, 2)
            counters, *found = in_threads(run.wait, reads, reads)
            assert (counters.nparams, found) == (n, [{MAGIC}, {MAGIC}])


@pytest.mark.parametrize("backend", TIMED)
def test_a_call_between_the_steps_of_a_copy_waits_for_it(backend: str) -> None:
    """A read that has asked for some lines has them all, and the call sees what was done."""
    data = np.random.default_rng(3).integers(0, 256, 256 * LINE, np.uint8)
    with Axdimm(backend) as device:
        pointers = [device.MallocAxdimm(data.size, channel) for channel in (0, 1)]
        for pointer in pointers:
            device.MemcpyHost2Axdimm(pointer, data, data.size)
        targets = [np.zeros_like(data) for _ in pointers]
        copies = [
            device.MemcpyAxdimm2Host(target, pointer, data.size, stream=device.stream(channel))
            for channel, (pointer, target) in enumerate(zip(pointers, targets, strict=True))
        ]
        # Both channels want the link, so each copy is in the middle of its lines.
        assert not copies[0].done
        assert copies[0].started
        address = pointers[0].address
        assert (device.transport.read_lines(0, address, LINE) == data[:LINE]).all()
        assert copies[0].over
        for copy, target in zip(copies, targets, strict=True):
            copy.wait()
            assert (target == data).all()


@pytest.mark.parametrize("backend", TIMED)
def test_a_poll_during_a_run_leaves_the_runs_time_as_it_is(backend: str) -> None:
    n = 20_000

    def cycles(polls: int) -> int:
        with Axdimm(backend, modes="wait") as device:
            tensors = [device.MallocAxdimm(4 * n, 0) for _ in range(4)]
            step = (n, 1e-3, 0.9, 0.999, 1e-8, 0.0, 1, 0)
            run = device.RunAdamOnAxdimmAsync(*tensors, *step)
            identify(device, 0, polls)
            run.wait()
            return run.ended - run.began

    assert abs(cycles(2) - cycles(0)) <= 256


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_of_one_thread_is_not_anothers(backend: str) -> None:
    with Axdimm(backend) as device:
        device.SetArbiterAcc(0)

        def refused() -> None:
            device.transport.read_lines(0, 0, LINE)

        fault, found = in_threads(refused, lambda: identify(device, 1, 2))
        assert isinstance(fault, DeviceFault)
        assert found == {MAGIC}
        assert identify(device, 0, 1) == {MAGIC}


@pytest.mark.parametrize("backend", TIMED)
def test_closing_waits_for_a_call_of_another_thread(backend: str) -> None:
    device = Axdimm(backend)
    begun = threading.Event()

    def closes() -> None:
        begun.wait(60)
        device.transport.close()

    def waits() -> Any:
        with device.transport.domain.clock:
            begun.set()
            registers = arbiter_registers(device.transport, 0)
            return {registers.read("id") & 0xFFFFFFFF for _ in range(100)}

    assert in_threads(waits, closes) == [{MAGIC}, None]
    device.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("by_itself", [False, True])
def test_a_transport_that_was_closed_does_nothing(backend: str, *, by_itself: bool) -> None:
    """Whatever it is asked for, in a call of the clock, too; and its device says so, and again."""
    device = Axdimm(backend)
    transport, line = device.transport, np.zeros(LINE, np.uint8)
    pointer = device.MallocAxdimm(LINE, 0)
    times = {"interval_fabric_cycles": 1, "timeout_fabric_cycles": 10}
    for _ in range(2):
        (transport if by_itself else device).close()
    calls: list[Callable[[], Any]] = [
        lambda: transport.read_lines(0, 0, LINE),
        lambda: transport.write_lines(0, 0, line),
        lambda: transport.poll(0, kernel_window(transport.capacity_bytes), 0, 0, **times),
        lambda: list(transport.read_steps(0, 0, LINE)),
        lambda: list(transport.write_steps(0, 0, line)),
        lambda: transport.backdoor_read(0, 0, LINE),
        lambda: transport.backdoor_write(0, 0, line),
        lambda: transport.now(0),
        lambda: transport.fabric_cycles(0),
        lambda: transport.join(Clock()),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="the device was closed: open it again"):
            call()
        with transport.domain.clock, pytest.raises(ClosedError, match="open it again"):
            call()
    for _ in range(2):
        with pytest.raises(ClosedError, match="the device was closed: open it again"):
            device.MemcpyHost2Axdimm(pointer, line, LINE)
    device.close()


def test_a_callback_may_not_wait_for_the_transport() -> None:
    with Axdimm("cycles:tiny") as device:
        pointer = device.MallocAxdimm(LINE, 0)
        copy = device.MemcpyHost2Axdimm(pointer, bytes(LINE), LINE, stream=device.stream(0))
        raised: list[BaseException] = []

        def callback() -> None:
            try:
                device.transport.read_lines(0, 0, LINE)
            except DeadlockError as error:
                raised.append(error)

        copy.add_done_callback(callback)
        copy.wait()
        assert len(raised) == 1
