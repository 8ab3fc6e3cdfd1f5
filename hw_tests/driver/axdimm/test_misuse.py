"""Every way to misuse the driver has its exception, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hw_tests.driver.adam import ADAM
from hw_tests.driver.device_memory import snapshot
from hw_tests.driver.transports import Bytes, TransportWrapper, WatchedTransport
from sw_driver.axdimm import Axdimm, AxdimmPointer, Mode
from sw_driver.axdimm.backends import BackendOptions, open_backend
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.axdimm.registers import kernel_registers
from sw_driver.axdimm.transport import Transport, arbiter_window, kernel_window
from sw_driver.device import errors
from sw_driver.device.transport import DeviceTimeout

COUNT = 20
NBYTES = 4 * COUNT


@contextmanager
def refused(
    device: Axdimm,
    exception: type[errors.AxdimmError],
    *numbers: Any,
    running: tuple[int, ...] = (),
) -> Iterator[None]:
    """Expects ``exception`` with ``numbers`` in its message, and that nothing changes."""
    watched = device.transport
    assert isinstance(watched, WatchedTransport)
    idle = [channel for channel in range(device.channels) if channel not in running]

    def state() -> tuple:
        return tuple(
            (device.mode(channel), device.memory(channel), device.copied_bytes(channel))
            for channel in range(device.channels)
        )

    before, changes, memory = state(), watched.changes, snapshot(watched)
    with pytest.raises(exception) as caught:
        yield
    assert type(caught.value) is exception
    for number in numbers:
        assert str(number) in str(caught.value)
    assert state() == before
    assert watched.changes == changes
    after = snapshot(watched)
    for channel in idle:
        assert np.array_equal(memory[channel], after[channel])


def tensors(device: Axdimm, channel: int = 0, nbytes: int = NBYTES) -> dict[str, AxdimmPointer]:
    pointers = {name: device.MallocAxdimm(nbytes, channel) for name in "pmvg"}
    for pointer in pointers.values():
        device.MemcpyHost2Axdimm(pointer, bytes(nbytes), nbytes, backdoor=True)
    return pointers


def tensors_without_contents(device: Axdimm) -> dict[str, AxdimmPointer]:
    return {name: device.MallocAxdimm(NBYTES, 0) for name in "pmvg"}


def test_out_of_memory(device: Axdimm) -> None:
    total = device.memory(0).total_bytes
    with refused(device, errors.OutOfMemoryError, total + 1, total):
        device.MallocAxdimm(total + 1, 0)


def test_the_register_windows_cannot_be_allocated(device: Axdimm) -> None:
    total = device.memory(0).total_bytes
    assert total == kernel_window(device.transport.capacity_bytes)
    pointer = device.MallocAxdimm(total, 0)
    assert pointer.address + total == total
    with refused(device, errors.OutOfMemoryError, 1):
        device.MallocAxdimm(1, 0)


@pytest.mark.parametrize("nbytes", [0, -5, 1.5, "64", None])
def test_size_to_allocate(device: Axdimm, nbytes: Any) -> None:
    with refused(device, errors.InvalidArgumentError, "nbytes", nbytes):
        device.MallocAxdimm(nbytes, 0)


@pytest.mark.parametrize("value", [0, 2.0, True, "2", float("nan"), None])
def test_bad_sizes_of_a_golden_module_are_refused(value: Any) -> None:
    for name in ("channels", "capacity_bytes"):
        with pytest.raises(errors.InvalidArgumentError, match=f"{name} is {value!r}: expected"):
            GoldenTransport(**{name: value})


@pytest.mark.parametrize("value", [2.0, True, "2", float("nan"), None, -1])
def test_bad_windows_and_times_are_refused(value: Any) -> None:
    options = BackendOptions(wave="wave.fst", wave_window=(value, 100))
    with pytest.raises(errors.InvalidArgumentError, match=f"wave_window is {value!r}"):
        open_backend("rtl:tiny", options)
    with Axdimm("golden:tiny") as device:
        device.SetArbiterAcc(0)
        with pytest.raises(errors.InvalidArgumentError, match="does not fit into"):
            device.registers(0).write("kernel.count", value if value != 2.0 else 2.5)
        if value not in (2.0, None):
            with pytest.raises(errors.InvalidArgumentError, match="timeout is"):
                device.WaitAxdimm(0, value)


@pytest.mark.parametrize("channel", [-1, 2, 0.0, "0", None])
def test_no_such_channel(device: Axdimm, channel: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: device.MallocAxdimm(64, channel),
        lambda: device.SetArbiterAcc(channel),
        lambda: device.SetArbiterNormal(channel),
        lambda: device.WaitAxdimm(channel),
        lambda: device.PollAxdimm(channel),
        lambda: device.mode(channel),
    ]
    for call in calls:
        with refused(device, errors.InvalidArgumentError, "channel", channel):
            call()


def test_foreign_pointer(device: Axdimm) -> None:
    with Axdimm(GoldenTransport()) as other:
        foreign = other.MallocAxdimm(64, 0)
    device.MallocAxdimm(64, 0)
    for pointer in (foreign, 0, None, "0x40"):
        with refused(device, errors.PointerError):
            device.FreeAxdimm(pointer)  # type: ignore[arg-type]
        with refused(device, errors.PointerError):
            device.MemcpyHost2Axdimm(pointer, bytes(64), 64)  # type: ignore[arg-type]
        with refused(device, errors.PointerError):
            device.MemcpyAxdimm2Host(bytearray(64), pointer, 64)  # type: ignore[arg-type]


def test_freed_pointer(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(64, 1)
    device.FreeAxdimm(pointer)
    # The same memory belongs to somebody else now.
    assert device.MallocAxdimm(64, 1).address == pointer.address
    with refused(device, errors.PointerError, hex(pointer.address), "was freed"):
        device.FreeAxdimm(pointer)
    with refused(device, errors.PointerError, hex(pointer.address), "was freed"):
        device.MemcpyHost2Axdimm(pointer, bytes(64), 64)
    with refused(device, errors.PointerError, hex(pointer.address), "was freed"):
        device.MemcpyAxdimm2Host(bytearray(64), pointer, 64, backdoor=True)


def test_only_the_start_of_an_allocation_can_be_freed(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(256, 0)
    with refused(device, errors.PointerError, hex(pointer.address), 64):
        device.FreeAxdimm(pointer + 64)


@pytest.mark.parametrize("backdoor", [False, True])
@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 101), (100, 1), (50, 51), (-1, 1), (-64, 64), (1000, 0), (64, 64)]
)
def test_copy_past_the_allocation(device: Axdimm, offset: int, nbytes: int, backdoor: bool) -> None:
    device.MallocAxdimm(64, 0)
    pointer = device.MallocAxdimm(100, 0)
    with refused(device, errors.RangeError, offset, offset + nbytes, 100):
        device.MemcpyHost2Axdimm(pointer + offset, bytes(nbytes), nbytes, backdoor=backdoor)
    destination = bytearray(b"\x55" * nbytes)
    with refused(device, errors.RangeError, offset, offset + nbytes, 100):
        device.MemcpyAxdimm2Host(destination, pointer + offset, nbytes, backdoor=backdoor)
    assert destination == b"\x55" * nbytes


@pytest.mark.parametrize("nbytes", [-1, 2.0, None])
def test_size_to_copy(device: Axdimm, nbytes: Any) -> None:
    pointer = device.MallocAxdimm(64, 0)
    with refused(device, errors.InvalidArgumentError, "nbytes", nbytes):
        device.MemcpyHost2Axdimm(pointer, bytes(64), nbytes)
    with refused(device, errors.InvalidArgumentError, "nbytes", nbytes):
        device.MemcpyAxdimm2Host(bytearray(64), pointer, nbytes)


def test_host_buffers(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(100, 0)
    with refused(device, errors.InvalidArgumentError, 99, 100):
        device.MemcpyHost2Axdimm(pointer, bytes(99), 100)
    with refused(device, errors.InvalidArgumentError, 99, 100):
        device.MemcpyAxdimm2Host(bytearray(99), pointer, 100)
    with refused(device, errors.InvalidArgumentError, "read-only"):
        device.MemcpyAxdimm2Host(bytes(100), pointer, 100)
    with refused(device, errors.InvalidArgumentError, "contiguous"):
        device.MemcpyHost2Axdimm(pointer, np.zeros(200, dtype=np.uint8)[::2], 100)
    with refused(device, errors.InvalidArgumentError, "list"):
        device.MemcpyHost2Axdimm(pointer, [0] * 100, 100)


def test_copy_in_acceleration_mode(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(64, 1)
    device.SetArbiterAcc(1)
    assert device.mode(1) is Mode.ACCELERATION
    with refused(device, errors.WrongModeError, "acceleration", "SetArbiterNormal(1)"):
        device.MemcpyHost2Axdimm(pointer, bytes(64), 64)
    with refused(device, errors.WrongModeError, "acceleration", "SetArbiterNormal(1)"):
        device.MemcpyAxdimm2Host(bytearray(64), pointer, 64)
    device.MemcpyAxdimm2Host(bytearray(64), pointer, 64, backdoor=True)


def test_run_in_normal_mode(device: Axdimm) -> None:
    pointers = tensors(device)
    with refused(device, errors.WrongModeError, "normal", "SetArbiterAcc(0)"):
        device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **ADAM, channel=0)


@pytest.fixture
def ready(device: Axdimm) -> dict[str, Any]:
    """Arguments of a run that channel 0 would accept."""
    arguments = {**tensors(device, nbytes=4 * 64), "nparams": COUNT, **ADAM, "channel": 0}
    device.SetArbiterAcc(0)
    return arguments


@pytest.mark.parametrize("name", "pmvg")
def test_run_of_more_parameters_than_a_tensor_holds(
    device: Axdimm, ready: dict[str, Any], name: str
) -> None:
    short = device.MallocAxdimm(NBYTES - 1, 0)
    with refused(device, errors.InvalidArgumentError, f"{name} holds {COUNT - 1}", COUNT):
        device.RunAdamOnAxdimmAsync(**{**ready, name: short})
    with refused(device, errors.InvalidArgumentError, "holds 16", COUNT):
        device.RunAdamOnAxdimmAsync(**{**ready, name: ready[name] + 192})
    with refused(device, errors.InvalidArgumentError, "holds 0", COUNT):
        device.RunAdamOnAxdimmAsync(**{**ready, name: ready[name] + -64})


@pytest.mark.parametrize("nparams", [0, -3, 2.5, None])
def test_run_of_no_parameters(device: Axdimm, ready: dict[str, Any], nparams: Any) -> None:
    with refused(device, errors.InvalidArgumentError, "nparams", nparams):
        device.RunAdamOnAxdimmAsync(**{**ready, "nparams": nparams})


@pytest.mark.parametrize("name", "pmvg")
def test_run_on_bad_pointers(device: Axdimm, ready: dict[str, Any], name: str) -> None:
    elsewhere = device.MallocAxdimm(NBYTES, 1)
    with refused(device, errors.InvalidArgumentError, name, 1, 0):
        device.RunAdamOnAxdimmAsync(**{**ready, name: elsewhere})
    with refused(device, errors.InvalidArgumentError, name, hex(ready[name].address + 4)):
        device.RunAdamOnAxdimmAsync(**{**ready, name: ready[name] + 4})
    with refused(device, errors.PointerError):
        device.RunAdamOnAxdimmAsync(**{**ready, name: replace(ready[name], device=0)})
    freed = device.MallocAxdimm(NBYTES, 0)
    device.FreeAxdimm(freed)
    with refused(device, errors.PointerError, hex(freed.address), "was freed"):
        device.RunAdamOnAxdimmAsync(**{**ready, name: freed})


def test_run_on_overlapping_tensors(device: Axdimm, ready: dict[str, Any]) -> None:
    with refused(device, errors.RangeError, "p", "g", hex(ready["p"].address)):
        device.RunAdamOnAxdimmAsync(**{**ready, "g": ready["p"]})
    with refused(device, errors.RangeError, "m", "v", hex(ready["m"].address + 64)):
        device.RunAdamOnAxdimmAsync(**{**ready, "v": ready["m"] + 64})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", -1e-3),
        ("lr", float("nan")),
        ("lr", float("inf")),
        ("lr", 1e39),
        ("lr", "fast"),
        ("beta1", 1.0),
        ("beta1", -0.1),
        ("beta1", float("nan")),
        ("beta2", 1.5),
        ("beta2", None),
        ("eps", -1e-8),
        ("eps", 1e300),
        ("weight_decay", -1.0),
        ("weight_decay", float("nan")),
        ("t", 0),
        ("t", -1),
        ("t", 1.5),
        ("t", 2**53 + 1),
    ],
)
def test_hyperparameters(device: Axdimm, ready: dict[str, Any], name: str, value: Any) -> None:
    with refused(device, errors.InvalidArgumentError, name, value):
        device.RunAdamOnAxdimmAsync(**{**ready, name: value})


def test_what_a_running_kernel_forbids(
    device: Axdimm, watched: WatchedTransport, ready: dict[str, Any]
) -> None:
    other = device.MallocAxdimm(64, 0)
    watched.held = True
    run = device.RunAdamOnAxdimmAsync(**ready)
    assert not run.done
    assert not device.PollAxdimm(0)
    assert device.PollAxdimm(1)
    forbidden: list[Callable[[], Any]] = [
        lambda: device.RunAdamOnAxdimmAsync(**ready),
        lambda: device.FreeAxdimm(ready["g"]),
        lambda: device.MemcpyHost2Axdimm(other, bytes(64), 64),
        lambda: device.MemcpyAxdimm2Host(bytearray(64), other, 64),
        lambda: device.MemcpyHost2Axdimm(other, bytes(64), 64, backdoor=True),
        lambda: device.MemcpyAxdimm2Host(bytearray(64), other, 64, backdoor=True),
        lambda: device.SetArbiterNormal(0),
        lambda: device.SetArbiterAcc(0),
        lambda: device.configuration(0),
    ]
    for call in forbidden:
        with refused(device, errors.BusyError, 0, COUNT, running=(0,)):
            call()
    # What has nothing to do with the run goes on.
    device.FreeAxdimm(other)
    device.FreeAxdimm(device.MallocAxdimm(64, 0))
    with refused(device, errors.WaitTimeoutError, COUNT, 0.01, running=(0,)):
        run.wait(timeout=0.01)
    with refused(device, errors.WaitTimeoutError, COUNT, 0.01, running=(0,)):
        device.WaitAxdimm(0, timeout=0.01)
    watched.held = False
    assert run.wait(timeout=60).nparams == COUNT
    assert device.WaitAxdimm(0) == run.wait()
    assert device.PollAxdimm(0)
    device.FreeAxdimm(ready["g"])


def test_a_closed_device_refuses(backend) -> None:
    device = Axdimm(WatchedTransport(backend))
    pointer = device.MallocAxdimm(64, 0)
    device.close()
    device.close()
    with pytest.raises(errors.ClosedError):
        device.MallocAxdimm(64, 0)
    with pytest.raises(errors.ClosedError):
        device.MemcpyHost2Axdimm(pointer, bytes(64), 64)


class _StuckTransport(TransportWrapper):
    """A kernel that is busy until ``stuck`` is cleared, as both status registers say."""

    stuck = False

    def read_steps(self, channel: int, address: int, nbytes: int) -> Generator[None, None, Bytes]:
        data = yield from super().read_steps(channel, address, nbytes)
        if self.stuck and address == kernel_window(self.capacity_bytes) + 0x40:
            data[0] |= 1
        if self.stuck and address == arbiter_window(self.capacity_bytes) + 0x80:
            data[0] |= 4
        return data

    def poll_steps(
        self, channel: int, address: int, mask: int, value: int, **times: Any
    ) -> Generator[None, None, int]:
        if self.stuck and address == kernel_window(self.capacity_bytes) + 0x40:
            raise DeviceTimeout("busy")
        return (yield from super().poll_steps(channel, address, mask, value, **times))


def test_a_kernel_that_never_finishes_is_given_up() -> None:
    transport = _StuckTransport(GoldenTransport())
    with Axdimm(transport) as device:
        pointers = tensors(device)
        device.SetArbiterAcc(0)
        transport.stuck = True
        run = device.RunAdamOnAxdimmAsync(
            **pointers, nparams=COUNT, **ADAM, channel=0, timeout_fabric_cycles=12345
        )
        with pytest.raises(errors.DeviceTimeoutError, match=r"12345 fabric cycles.*0x") as caught:
            run.wait(timeout=60)
        assert caught.value.details["state"] == (
            f"channel 0: acceleration mode, kernel not seen idle, last run of {COUNT} parameters "
            f"0 of {COUNT} updated"
        )
        assert not device.PollAxdimm(0)
        with pytest.raises(errors.BusyError, match=rf"{COUNT} parameters.*PollAxdimm\(0\)"):
            device.SetArbiterNormal(0)
        transport.stuck = False
        assert device.PollAxdimm(0)
        device.SetArbiterNormal(0)


def test_a_run_that_outlives_its_driver_keeps_the_channel_busy() -> None:
    transport = _StuckTransport(GoldenTransport())
    with Axdimm(transport) as device:
        pointers = tensors(device)
        device.SetArbiterAcc(0)
        transport.stuck = True
        run = device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **ADAM, channel=0)
    with pytest.raises(errors.ClosedError, match=f"{COUNT} parameters on channel 0"):
        run.wait(timeout=60)
    with Axdimm(transport) as device:
        assert device.mode(0) is Mode.ACCELERATION
        pointers = tensors_without_contents(device)
        calls: list[Callable[[], Any]] = [
            lambda: device.SetArbiterNormal(0),
            lambda: device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **ADAM, channel=0),
            lambda: device.MemcpyHost2Axdimm(pointers["p"], bytes(64), 64, backdoor=True),
            lambda: device.configuration(0),
        ]
        for call in calls:
            assert not device.PollAxdimm(0)
            with pytest.raises(errors.BusyError, match=r"channel 0.*when the device was opened"):
                call()
        transport.stuck = False
        assert device.PollAxdimm(0)
        for call in calls[1:]:
            call()
            device.WaitAxdimm(0, timeout=60)


def test_the_driver_finds_a_kernel_at_work(backend: Transport) -> None:
    count = 3000
    window = kernel_registers(backend, 0)
    with Axdimm(backend) as device:
        device.SetArbiterAcc(0)
        settings = {f"{name}_in": 4 * 4096 * number for number, name in enumerate("pgmv")}
        settings |= {f"{name}_out": settings[f"{name}_in"] for name in "pmv"}
        window.write_many({"count": count, **settings})
        window.write("control", 1)
    with Axdimm(backend) as device:
        if backend.timed:
            assert not device.PollAxdimm(0)
            with pytest.raises(errors.BusyError):
                device.SetArbiterNormal(0)
        # Every question lets a little time pass.
        polls = 0
        while not device.PollAxdimm(0):
            polls += 1
            assert polls < 10 * count
        assert not window.read_field("status", "busy")
        assert window.read_field("status", "done")
        device.SetArbiterNormal(0)


class _UnswitchingTransport(TransportWrapper):
    """No mode is seen to switch; the arbiter's status has ``bits``."""

    bits = 0

    def read_lines(self, channel: int, address: int, nbytes: int) -> Bytes:
        lines = super().read_lines(channel, address, nbytes)
        if address == arbiter_window(self.capacity_bytes) + 0x80:
            lines[0] = self.bits
        return lines

    def poll_steps(
        self, channel: int, address: int, mask: int, value: int, **times: Any
    ) -> Generator[None, None, int]:
        yield from ()
        raise DeviceTimeout("draining")


@pytest.mark.parametrize(
    ("bits", "waits"),
    [(0b00, "nothing that its status shows"), (0b10, "transfers in flight")],
)
def test_a_switch_that_takes_too_long_is_given_up(bits: int, waits: str) -> None:
    transport = _UnswitchingTransport(GoldenTransport())
    transport.bits = bits
    with Axdimm(transport) as device:
        said = (
            "channel 0 was not in acceleration mode after 1000000 fabric cycles: it waits for "
            f"{waits}; draining"
        )
        with pytest.raises(errors.DeviceTimeoutError, match=said):
            device.SetArbiterAcc(0)
        assert device.mode(0) is Mode.NORMAL


class _FailingTransport(TransportWrapper):
    """A kernel that ends with a cause."""

    def poll_steps(
        self, channel: int, address: int, mask: int, value: int, **times: Any
    ) -> Generator[None, None, int]:
        result = yield from super().poll_steps(channel, address, mask, value, **times)
        return result | 0x74 if address == kernel_window(self.capacity_bytes) + 0x40 else result


def test_errors_of_the_kernel_have_their_names() -> None:
    with Axdimm(_FailingTransport(GoldenTransport())) as device:
        pointers = tensors(device)
        device.SetArbiterAcc(0)
        run = device.RunAdamOnAxdimmAsync(**pointers, nparams=COUNT, **ADAM, channel=0)
        with pytest.raises(errors.KernelError, match=rf"{COUNT} parameters.*write_error") as caught:
            run.wait(timeout=60)
        assert caught.value.cause == "write_error"
        with pytest.raises(errors.KernelError):
            device.WaitAxdimm(0)
        assert "failed" in repr(run)


class _OtherDevice(TransportWrapper):
    """Something else answers."""

    def read_steps(self, channel: int, address: int, nbytes: int) -> Generator[None, None, Bytes]:
        yield from ()
        return np.zeros(nbytes, dtype=np.uint8)


def test_what_is_not_the_device_is_refused() -> None:
    with pytest.raises(errors.IncompatibleDeviceError, match=r"magic 0x0.*0x4e445841"):
        Axdimm(_OtherDevice(GoldenTransport()))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gold", "rtl, golden"),
        ("", "rtl, golden"),
        ("golden:", "tiny"),
        ("/dev/axdimm0", "'/dev/axdimm0': expected one of rtl, golden, cycles"),
    ],
)
def test_no_such_device(name: str, expected: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=expected):
        Axdimm(name)


def test_no_such_preset() -> None:
    with pytest.raises(ValueError, match="huge"):
        Axdimm("golden:huge")
