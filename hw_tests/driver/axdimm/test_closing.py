"""Closing the device while other threads use it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hw.axdimm.config import configure
from hw_tests.driver.adam import ADAM
from sw_driver.axdimm import Axdimm, backends
from sw_driver.axdimm.backends.cycles import CyclesTransport
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.axdimm.runs import KernelRun
from sw_driver.device import errors
from sw_driver.device.tensors import HostMemory
from sw_driver.device.transport import Transport, kernel_window
from sw_driver.runtime.wrapper import TransportWrapper

SECONDS = 60
COUNT = 20


class _HeldTransport(TransportWrapper):
    """Holds up the next write from ``held_from`` on; refuses whatever comes after closing."""

    def __init__(self, inner: Transport | None = None) -> None:
        super().__init__(inner or GoldenTransport(capacity_bytes=1 << 20))
        self.held_from: int | None = None
        self.holding = threading.Event()
        self.go_on = threading.Event()
        self.read_during_a_write = False
        self.closed_during_a_call = False
        self._calls = 0
        self._closed = False

    def write_lines(self, channel: int, address: int, data: np.ndarray) -> None:
        assert not self._closed
        self._calls += 1
        if self.held_from is not None and address >= self.held_from:
            self.held_from = None
            self.holding.set()
            assert self.go_on.wait(SECONDS)
        super().write_lines(channel, address, data)
        self._calls -= 1

    def read_lines(self, channel: int, address: int, nbytes: int) -> np.ndarray:
        assert not self._closed
        self.read_during_a_write |= self._calls > 0
        return super().read_lines(channel, address, nbytes)

    def poll(self, channel: int, address: int, mask: int, value: int, **times: Any) -> int:
        assert not self._closed
        return super().poll(channel, address, mask, value, **times)

    def close(self) -> None:
        self.closed_during_a_call |= self._calls > 0
        self._closed = True
        super().close()


class _Scene:
    """A device whose transport it owns, and threads."""

    def __init__(self, transport: _HeldTransport, device: Axdimm, pool: ThreadPoolExecutor) -> None:
        self.transport = transport
        self.device = device
        self._pool = pool
        self.tensors = {name: device.MallocAxdimm(4 * COUNT, 0) for name in "pmvg"}

    def copy(self) -> None:
        """A copy into channel 0."""
        self.device.MemcpyHost2Axdimm(self.tensors["p"], bytes(4 * COUNT), 4 * COUNT)

    def run(self) -> KernelRun:
        """A run on channel 0."""
        return self.device.RunAdamOnAxdimmAsync(**self.tensors, nparams=COUNT, **ADAM, channel=0)

    def held(self, call: Callable[[], Any], held_from: int = 0) -> Future[Any]:
        """Begins ``call`` in a thread; returns when it is held up in a write."""
        self.transport.held_from = held_from
        future = self._pool.submit(call)
        assert self.transport.holding.wait(SECONDS)
        return future

    def close(self) -> Future[None]:
        """Begins to close in a thread; returns when calls are refused."""
        future = self._pool.submit(self.device.close)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                self.device.mode(0)
            except errors.ClosedError:
                return future
        raise TimeoutError("the device does not close")

    def begin(self, call: Callable[[], Any]) -> Future[Any]:
        """Begins ``call`` in a thread."""
        return self._pool.submit(call)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Scene]:
    transport = _HeldTransport()
    monkeypatch.setitem(backends.BACKENDS, "golden", lambda options: transport)
    device = Axdimm("golden")
    with ThreadPoolExecutor(20) as pool:
        yield _Scene(transport, device, pool)
        transport.go_on.set()
    device.close()


def test_accesses_beside_the_driver_wait_for_its_own(scene: _Scene) -> None:
    copy = scene.held(scene.copy)
    reading = scene.begin(lambda: scene.device.transport.read_lines(0, 0, 64))
    with pytest.raises(TimeoutError):
        reading.result(0.05)
    scene.transport.go_on.set()
    copy.result(SECONDS)
    reading.result(SECONDS)
    assert not scene.transport.read_during_a_write


def test_closing_waits_for_a_call_in_flight(scene: _Scene) -> None:
    copy = scene.held(scene.copy)
    closing = scene.close()
    with pytest.raises(TimeoutError):
        closing.result(0.05)
    scene.transport.go_on.set()
    copy.result(SECONDS)
    closing.result(SECONDS)
    assert not scene.transport.closed_during_a_call
    with pytest.raises(errors.ClosedError):
        scene.copy()


def test_a_call_that_waits_while_the_device_is_closed_is_refused(scene: _Scene) -> None:
    device, pointer = scene.device, scene.tensors["p"]
    calls: list[Callable[[], Any]] = [
        scene.copy,
        scene.run,
        lambda: device.MemcpyAxdimm2Host(bytearray(64), pointer, 64),
        lambda: device.MemcpyAxdimm2Host(bytearray(64), pointer, 64, backdoor=True),
        lambda: device.SetArbiterAcc(0),
        lambda: device.SetArbiterNormal(0),
        lambda: device.MallocAxdimm(64, 0),
        lambda: device.FreeAxdimm(pointer),
        lambda: device.memory(0),
        lambda: device.configuration(0),
        lambda: device.copied_bytes(0),
        lambda: device.describe(),
        lambda: device.registers(0).read("arbiter.id"),
        lambda: device.peek(0, 0, 64),
    ]
    copy = scene.held(scene.copy)
    waiting = [scene.begin(call) for call in calls]
    time.sleep(0.1)  # until they wait: should one come late, it is refused all the same
    closing = scene.close()
    scene.transport.go_on.set()
    copy.result(SECONDS)
    for future in waiting:
        with pytest.raises(errors.ClosedError):
            future.result(SECONDS)
    closing.result(SECONDS)


def test_a_run_that_starts_while_the_device_is_closed_has_its_handle(scene: _Scene) -> None:
    scene.device.SetArbiterAcc(0)
    starting = scene.held(scene.run, held_from=kernel_window(scene.transport.capacity_bytes))
    closing = scene.close()
    time.sleep(0.1)
    scene.transport.go_on.set()
    assert starting.result(SECONDS).wait(SECONDS).nparams == COUNT
    closing.result(SECONDS)
    assert not scene.transport.closed_during_a_call


def test_two_threads_may_close(scene: _Scene) -> None:
    copy = scene.held(scene.copy)
    closing = [scene.close(), scene.begin(scene.device.close)]
    scene.transport.go_on.set()
    for future in (copy, *closing):
        future.result(SECONDS)


def _fail(*arguments: object, **options: object) -> None:
    raise errors.AxdimmError("no end")


@pytest.mark.parametrize("what", [GoldenTransport, HostMemory])
def test_what_fails_to_close_keeps_nothing_else_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: type
) -> None:
    trace = tmp_path / "trace.json"
    device = Axdimm("cycles:tiny", timeline=trace)
    device.MallocHost(64)
    device.RegisterStorage(tmp_path / "storage", capacity_bytes=1 << 20)
    device.SetArbiterAcc(0)
    with monkeypatch.context() as broken:
        broken.setattr(what, "close", _fail)
        with pytest.raises(errors.AxdimmError, match="no end"):
            device.close()
    assert "to acceleration mode" in trace.read_text()
    trace.unlink()
    device.close()
    assert not trace.exists()
    with Axdimm("cycles:tiny") as device:
        device.RegisterStorage(tmp_path / "storage")


def test_closing_can_be_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    transport = _HeldTransport(CyclesTransport(configure("tiny")))
    monkeypatch.setitem(backends.BACKENDS, "cycles", lambda options: transport)
    device = Axdimm("cycles", timeline=trace, stall_timeout_s=0.1)
    pointer = device.MallocAxdimm(64, 0)
    device.SetArbiterAcc(1)
    transport.held_from = 0
    with ThreadPoolExecutor(1) as pool:
        copy = pool.submit(device.MemcpyHost2Axdimm, pointer, bytes(64), 64)
        assert transport.holding.wait(SECONDS)
        with pytest.raises(errors.DeviceTimeoutError, match="call in progress on channel 0"):
            device.close()
        assert "to acceleration mode" in trace.read_text()
        transport.go_on.set()
        copy.result(SECONDS)
    device.close()
    assert not transport.closed_during_a_call
