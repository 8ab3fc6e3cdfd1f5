"""Closing the device while it is used: by other threads, within a call, and what fails to close."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hw_tests.driver.adam import ADAM
from hw_tests.driver.transports import Bytes, TransportWrapper, WatchedTransport
from sw_driver.axdimm import Axdimm, AxdimmPointer, backends
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.device import errors
from sw_driver.device.tensors import HostMemory

SECONDS = 60
COUNT = 20
NBYTES = 4 * COUNT


class _Interposed(TransportWrapper):
    """Calls something in the middle of the next write; nothing may come after closing."""

    def __init__(self) -> None:
        super().__init__(GoldenTransport(capacity_bytes=1 << 20))
        self.interpose: Callable[[], object] | None = None
        self.closed = False

    def write_steps(self, channel: int, address: int, data: Bytes) -> Generator[None, None, None]:
        call, self.interpose = self.interpose, None
        if call is not None:
            call()
        yield
        assert not self.closed
        yield from super().write_steps(channel, address, data)

    def close(self) -> None:
        self.closed = True
        super().close()


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> _Interposed:
    transport = _Interposed()
    monkeypatch.setitem(backends.BACKENDS, "golden", lambda options: transport)
    return transport


def copy(device: Axdimm, pointer: AxdimmPointer, **how: Any) -> Any:
    return device.MemcpyHost2Axdimm(pointer, bytes(NBYTES), NBYTES, **how)


def test_closing_waits_for_another_threads_call(transport: _Interposed) -> None:
    device = Axdimm("golden")
    pointer = device.MallocAxdimm(NBYTES, 0)
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(SECONDS)

    transport.interpose = hold
    with ThreadPoolExecutor(3) as pool:
        copying = pool.submit(copy, device, pointer)
        assert begun.wait(SECONDS)
        closing = [pool.submit(device.close) for _ in range(2)]
        with pytest.raises(TimeoutError):
            closing[0].result(0.05)
        assert not transport.closed
        go_on.set()
        copying.result(SECONDS)
        for each in closing:
            each.result(SECONDS)
    assert transport.closed
    with pytest.raises(errors.ClosedError):
        copy(device, pointer)


CALLS: dict[str, Callable[[Axdimm, AxdimmPointer], Any]] = {
    "copy": copy,
    "by the backdoor": lambda device, pointer: copy(device, pointer, backdoor=True),
    "queued copy": lambda device, pointer: copy(device, pointer, stream=device.stream(0)),
    "run": lambda device, pointer: device.RunAdamOnAxdimmAsync(
        pointer, pointer, pointer, pointer, COUNT, *ADAM.values(), 0
    ),
    "mode": lambda device, pointer: device.SetArbiterAcc(0),
    "malloc": lambda device, pointer: device.MallocAxdimm(64, 0),
    "malloc of the host": lambda device, pointer: device.MallocHost(64),
    "free": lambda device, pointer: device.FreeAxdimm(pointer),
    "configuration": lambda device, pointer: device.configuration(0),
    "describe": lambda device, pointer: device.describe(),
    "registers": lambda device, pointer: device.registers(0).read("arbiter.id"),
    "peek": lambda device, pointer: device.peek(0, 0, 64),
    "mapping": lambda device, pointer: device.map(pointer, 64).load(0, 64),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_what_is_closed_within_a_call_is_closed_at_its_end(
    transport: _Interposed, call: Callable[[Axdimm, AxdimmPointer], Any]
) -> None:
    """As by garbage collection, which comes at any time."""
    device = Axdimm("golden")
    pointer = device.MallocAxdimm(NBYTES, 0)
    transport.interpose = device.close
    assert not transport.closed
    copy(device, pointer)
    with pytest.raises(errors.ClosedError):
        call(device, pointer)
    assert transport.closed


def test_what_is_freed_within_a_call_is_free_after_it(transport: _Interposed) -> None:
    """As by garbage collection."""
    device = Axdimm("golden")
    pointer, other = (device.MallocAxdimm(NBYTES, 0) for _ in range(2))
    host = device.MallocHost(NBYTES)
    before = device.memory(0).allocations
    transport.interpose = lambda: (device.FreeAxdimm(other), device.FreeHost(host))
    copy(device, pointer)
    assert device.memory(0).allocations == before - 1
    with pytest.raises(errors.PointerError, match="was freed"):
        device.FreeHost(host)


@pytest.mark.parametrize("queued", [False, True])
def test_a_callback_closes_the_device_during_a_copy(transport: _Interposed, queued: bool) -> None:
    device = Axdimm("golden")
    pointers = [device.MallocAxdimm(NBYTES, channel) for channel in range(2)]
    copy(device, pointers[0], stream=device.stream(0)).add_done_callback(device.close)
    with pytest.raises(errors.ClosedError, match="the device was closed"):
        copy(device, pointers[1], stream=device.stream(1) if queued else None).wait()
    assert transport.closed


def test_closing_ends_what_is_queued_or_in_progress() -> None:
    transport = WatchedTransport(GoldenTransport())
    device = Axdimm(transport)
    tensors = {name: device.MallocAxdimm(NBYTES, 0) for name in "pmvg"}
    device.SetArbiterAcc(0)
    transport.held = True
    run = device.RunAdamOnAxdimmAsync(**tensors, nparams=COUNT, **ADAM, channel=0)
    stream = device.stream(0)
    queued = [device.SetArbiterNormal(0, stream=stream, modes="wait") for _ in range(3)]
    assert not queued[0].done
    device.close()
    with pytest.raises(errors.ClosedError, match=f"during .*{COUNT} parameters"):
        run.wait()
    for handle in queued:
        with pytest.raises(errors.ClosedError, match="before switch of channel 0"):
            handle.wait()
    for call in (lambda: device.SetArbiterNormal(0, stream=stream), lambda: stream.wait_for(run)):
        with pytest.raises(errors.ClosedError):
            call()
    stream.wait()


def _fail(*arguments: object, **options: object) -> None:
    raise errors.AxdimmError("no end")


@pytest.mark.parametrize("what", [GoldenTransport, HostMemory])
def test_what_fails_to_close_keeps_nothing_else_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: type
) -> None:
    trace = tmp_path / "trace.json"
    with monkeypatch.context() as broken:
        broken.setattr(what, "close", _fail)
        device = Axdimm("cycles:tiny", timeline=trace)
        device.MallocHost(64)
        device.RegisterStorage(tmp_path / "storage", capacity_bytes=1 << 20)
        device.SetArbiterAcc(0)
        with pytest.raises(errors.AxdimmError, match="no end"):
            device.close()
    assert "to acceleration mode" in trace.read_text()
    trace.unlink()
    device.close()
    assert not trace.exists()
    with Axdimm("cycles:tiny") as device:
        device.RegisterStorage(tmp_path / "storage")
