"""Looking into an opened device: registers by name, memory, and what it says of itself."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hw.csr.register_map import Field, Register
from hw_tests.driver.adam import ADAM
from hw_tests.driver.transports import WatchedTransport
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.channel import Channel
from sw_driver.axdimm.named_registers import NamedRegisters
from sw_driver.axdimm.transport import kernel_window
from sw_driver.device import errors

MAGIC = 0x4E445841


def test_registers_and_fields_are_read(device: Axdimm) -> None:
    registers = device.registers(1)
    assert registers.names[:3] == ["arbiter.id", "arbiter.id.magic", "arbiter.id.version"]
    assert {"kernel.status.cause", "kernel.p_in", "kernel.lr.value"} <= set(registers.names)
    assert registers.read("arbiter.id") == 2 << 32 | MAGIC
    assert registers.read("id.magic") == MAGIC
    assert registers.read("capacity.capacity_bytes") == device.transport.capacity_bytes
    assert registers.read("arbiter.status.mode") == "normal"
    device.SetArbiterAcc(1)
    assert registers.read("arbiter.mode.mode") == "acceleration"
    assert registers.read("kernel.status.cause") == "none"
    assert device.registers(0).read("arbiter.status.mode") == "normal"


def test_registers_are_written(device: Axdimm) -> None:
    device.SetArbiterAcc(1)
    registers = device.registers(1)
    registers.write("kernel.count", (1 << 40) - 1)
    assert registers.read("count.count") == (1 << 40) - 1
    registers.write("count.count", 0)
    registers.write("control", 1)  # which is refused, as there is nothing to do
    while not device.PollAxdimm(1):
        pass
    assert registers.read("kernel.status.cause") == "zero_count"


def test_registers_are_read_but_not_written_during_a_run(device: Axdimm) -> None:
    if not device.transport.timed:
        pytest.skip("without a clock a run is over when it begins")
    count = 10_000
    device.SetArbiterAcc(0)
    tensors = {name: device.MallocAxdimm(4 * count, 0) for name in "pmvg"}
    registers = device.registers(0)
    run = device.RunAdamOnAxdimmAsync(**tensors, nparams=count, **ADAM, channel=0)
    assert registers.read("kernel.count") == count
    run.wait(60)
    registers.write("kernel.control", 1)  # once more, past the driver
    assert registers.read("kernel.status.busy") == 1
    assert device.describe()["channels"][0]["running"]
    with pytest.raises(errors.BusyError):
        registers.write("kernel.count", 17)
    with pytest.raises(errors.BusyError):
        device.peek(0, 0, 1)
    while not device.PollAxdimm(0):
        pass
    assert registers.read("kernel.status.done") == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("status.mod", "no register: did you mean .*status.mode"),
        ("kernel.counts", "no register: did you mean kernel.count"),
        ("status", "two registers: did you mean arbiter.status or kernel.status"),
        ("arbiter", "no register: did you mean arbiter.id or "),
        ("", "no register: see names"),
        (None, "no register"),
    ],
)
def test_names_that_are_none(device: Axdimm, name: Any, said: str) -> None:
    for call in (device.registers(0).read, lambda name: device.registers(0).write(name, 0)):
        with pytest.raises(errors.InvalidArgumentError, match=said):
            call(name)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("arbiter.id", 0, "can only be read"),
        ("kernel.status.cause", 0, "can only be read"),
        ("arbiter.mode", 1, "SetArbiterAcc or SetArbiterNormal"),
        ("kernel.count", 1 << 40, "1099511627776 does not fit into kernel.count: .* 0xffffffffff"),
        ("kernel.count.count", -1, "-1 does not fit"),
        ("kernel.rule", "adam", "'adam' does not fit"),
    ],
)
def test_what_cannot_be_written(
    device: Axdimm, watched: WatchedTransport, name: str, value: Any, said: str
) -> None:
    device.SetArbiterAcc(0)
    changes = watched.changes
    with pytest.raises(errors.InvalidArgumentError, match=said):
        device.registers(0).write(name, value)
    assert watched.changes == changes


def test_the_kernels_registers_need_acceleration_mode(device: Axdimm) -> None:
    registers = device.registers(0)
    refused = registers.read("arbiter.refused")
    for call in (
        lambda: registers.read("kernel.count"),
        lambda: registers.write("kernel.count", 3),
    ):
        with pytest.raises(errors.WrongModeError):
            call()
    assert registers.read("arbiter.refused") == refused
    device.SetArbiterAcc(0)
    with pytest.raises(errors.InvalidArgumentError, match="control can only be written"):
        registers.read("control")


def test_the_other_fields_of_a_register_keep_their_values() -> None:
    def field(name: str, lsb: int, writable: bool = True) -> Field:
        hardware = {"hw_readable": True, "hw_writable": not writable, "pulse": False}
        of_software: Any = {"sw_readable": True, "sw_writable": writable, "clears": False}
        return Field(name=name, lsb=lsb, width=4, reset=0, encoding=(), **of_software, **hardware)

    class Window:
        held = 0x50203
        registers = (
            Register(
                name="three",
                places=(0,),
                fields=(field("a", 0), field("b", 8), field("c", 16, writable=False)),
            ),
        )

        def __getitem__(self, name: str) -> Register:
            return self.registers[0]

        def read(self, name: str) -> int:
            return self.held

        def write(self, name: str, value: int) -> None:
            assert name == "three"
            self.held = value

    window, empty = Window(), SimpleNamespace(registers=())
    channel = SimpleNamespace(arbiter=window, kernel=empty, use=lambda what, call, **idle: call())
    registers = NamedRegisters(cast(Channel, channel))
    registers.write("three.b", 9)
    assert window.held == 0x00903  # what cannot be written is not
    registers.write("three", 0x102)
    assert window.held == 0x00102
    assert registers.read("three.a") == 2


def test_memory_is_read_and_written(device: Axdimm) -> None:
    pointer = device.MallocAxdimm(256, 1)
    device.MemcpyHost2Axdimm(pointer, bytes(range(256)), 256)
    assert device.peek(1, pointer.address + 61, 5) == bytes(range(61, 66))  # over a line's border
    device.poke(1, pointer.address + 63, b"\xa5\x5a")
    data = np.empty(256, np.uint8)
    device.MemcpyAxdimm2Host(data, pointer, 256)
    assert data.tolist() == [*range(63), 0xA5, 0x5A, *range(65, 256)]
    end = kernel_window(device.transport.capacity_bytes)
    device.poke(0, end - 1, b"\x77")
    assert device.peek(0, end - 2, 2)[1:] == b"\x77"


def test_memory_that_is_not_there(device: Axdimm, watched: WatchedTransport) -> None:
    end = kernel_window(device.transport.capacity_bytes)
    changes = watched.changes
    for address, data in ((end, b"1"), (end - 1, b"12"), (-1, b"1"), (0, b""), ("0", b"1")):
        for call in (device.peek, device.poke):
            what: Any = len(data) if call == device.peek else data
            with pytest.raises(errors.InvalidArgumentError):
                call(0, cast(int, address), what)
    with pytest.raises(errors.InvalidArgumentError):
        device.peek(2, 0, 1)
    device.SetArbiterAcc(0)
    changes = watched.changes
    with pytest.raises(errors.WrongModeError):
        device.poke(0, 0, b"1")
    assert watched.changes == changes


def test_a_device_says_what_it_is(device: Axdimm) -> None:
    device.MallocAxdimm(100, 1)
    device.SetArbiterAcc(0)
    about = json.loads(json.dumps(device.describe()))
    transport = device.transport
    assert about == about | {
        "backend": transport.name,
        "capacity_bytes": transport.capacity_bytes,
        "fabric_mhz": 200.0,
        "timed": transport.timed,
    }
    first, second = about["channels"]
    assert (first["mode"], second["mode"]) == ("acceleration", "normal")
    assert not first["running"]
    assert first["rules"] == ["adam"]
    assert second["memory"]["allocations"] == 1
    assert second["copied_bytes"].keys() >= {"link_to_device", "backdoor_to_host"}
    assert (second["fabric_cycles"] > 0) == transport.timed
