"""The transport on a memory map: of a file in which a golden device answers, and of the RTL."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hw.axdimm.config import configure
from hw.axdimm.registers import arbiter_map
from hw.kernel.registers import kernel_map
from hw.verilog.writer import to_verilog
from hw_tests.axdimm.system import ModuleWithDram
from hw_tests.bench import run_bench
from hw_tests.driver.axdimm.test_adam import Update
from sw_driver.axdimm import (
    Axdimm,
    BackendOptions,
    MappedFile,
    MappedTransport,
    open_backend,
)
from sw_driver.axdimm.backends import mapped
from sw_driver.axdimm.backends.golden import MODES, GoldenTransport
from sw_driver.errors import (
    ClosedError,
    DeviceInUseError,
    IncompatibleDeviceError,
    InvalidOptionError,
    NoSuchDeviceError,
    WrongModeError,
)
from sw_driver.transport import DeviceFault, DeviceTimeout, arbiter_window, kernel_window

CAPACITY = 1 << 17
CHANNELS = 2


class GoldenDevice(GoldenTransport):
    """The golden model with its memory in a file, and its registers where the map has them."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.file = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        self._rest = self.file
        super().__init__(channels=CHANNELS, capacity_bytes=CAPACITY)
        self._shown: dict[int, bytes] = {}
        self.serve()

    def _memory(self) -> NDArray[np.uint8]:
        memory, self._rest = self._rest[:CAPACITY], self._rest[CAPACITY:]
        return memory

    def accelerating(self, channel: int) -> bool:
        return self._states[channel].mode == MODES["acceleration"]

    def serve(self) -> None:
        """Takes what was stored to registers, and shows what they read as from now on."""
        for channel in range(CHANNELS):
            for window, registers in (
                (kernel_window(CAPACITY), kernel_map()),
                (arbiter_window(CAPACITY), arbiter_map()),
            ):
                answers = window == arbiter_window(CAPACITY) or self.accelerating(channel)
                for register in registers.registers:
                    address = window + register.offset_bytes
                    place = channel * CAPACITY + address
                    found = self.file[place : place + 8]
                    if self._shown.get(place, bytes(8)) != found.tobytes() and answers:
                        line = np.zeros(64, np.uint8)
                        line[:8] = found
                        self.write_lines(channel, address, line)
            self._show(channel)

    def _show(self, channel: int) -> None:
        for window, registers in (
            (kernel_window(CAPACITY), kernel_map()),
            (arbiter_window(CAPACITY), arbiter_map()),
        ):
            answers = window == arbiter_window(CAPACITY) or self.accelerating(channel)
            for register in registers.registers:
                address = window + register.offset_bytes
                place = channel * CAPACITY + address
                value = self.read_lines(channel, address, 64)[:8] if answers else 0xFF
                self.file[place : place + 8] = value
                self._shown[place] = self.file[place : place + 8].tobytes()


class ServedFile(MappedFile):
    """The map of a file whose device is told of each access, as a bus would.

    The bytes go through the map; what the device refuses does not, and reads as ones.
    """

    def __init__(self, path: Path) -> None:
        self.device = GoldenDevice(path)
        super().__init__(path)

    def store(self, offset: int, value: int, nbytes: int) -> None:
        super().store(offset, value, nbytes)
        self.device.serve()

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        channel, address = divmod(offset, CAPACITY)
        if self.device.accelerating(channel):
            self.device.write_lines(channel, address, data)  # counts what it refuses
            self.device.serve()
        else:
            super().write(offset, data)

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        channel, address = divmod(offset, CAPACITY)
        if self.device.accelerating(channel):
            with pytest.raises(DeviceFault):
                self.device.read_lines(channel, address, nbytes)
            self.device.serve()
            return np.full(nbytes, 0xFF, np.uint8)
        return super().read(offset, nbytes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    result = tmp_path / "module"
    result.write_bytes(bytes(CHANNELS * CAPACITY))
    return result


@pytest.mark.parametrize("word_bytes", [8, 4])
def test_adam_on_a_file(path: Path, word_bytes: int) -> None:
    """Both channels through the public API; all of the memory is compared, bit for bit."""
    rng = np.random.default_rng(word_bytes)
    served = ServedFile(path)
    windows = kernel_window(CAPACITY)
    memory = served.device.file.reshape(CHANNELS, CAPACITY)
    memory[:, :windows] = rng.integers(0, 256, (CHANNELS, windows), np.uint8)
    expected = memory.copy()
    with MappedTransport(served, word_bytes=word_bytes) as transport, Axdimm(transport) as device:
        assert device.channels == CHANNELS
        assert not transport.timed
        for channel, count in ((0, 1000), (1, 77), (0, 16)):
            update = Update(device, channel, count, rng)
            update.upload(expected[channel])
            result = update.run()
            assert result.activity is None
            beats = -(-count // 16)
            assert (result.beats_read, result.beats_written) == (4 * beats, 3 * beats)
            update.expect(expected[channel])
            assert np.array_equal(memory[:, :windows], expected[:, :windows])
        # Bytes that are no whole lines, from a buffer that is nowhere aligned.
        data = np.arange(1001, dtype=np.uint8)[1:]
        pointer = device.MallocAxdimm(2000, 1)
        device.MemcpyHost2Axdimm(pointer + 7, data, data.size)
        back = np.zeros(1003, np.uint8)[3:]
        device.MemcpyAxdimm2Host(back, pointer + 7, back.size)
        assert np.array_equal(back, data)
    with pytest.raises(ClosedError, match="closed"):
        transport.read_lines(0, 0, 64)
    transport.close()


def test_what_is_refused_is_told(path: Path) -> None:
    with MappedTransport(ServedFile(path)) as transport, Axdimm(transport) as device:
        pointer = device.MallocAxdimm(256, 0)
        data = np.zeros(256, np.uint8)
        mode = np.zeros(64, np.uint8)
        mode[0] = 1
        for copy in (device.MemcpyHost2Axdimm, device.MemcpyAxdimm2Host):
            transport.write_lines(0, arbiter_window(CAPACITY) + 0x40, mode)
            ends = (pointer, data) if copy == device.MemcpyHost2Axdimm else (data, pointer)
            with pytest.raises(WrongModeError, match="switched past this driver"):
                copy(*ends, 256)
            device.SetArbiterNormal(0)
            copy(*ends, 256)
        with pytest.raises(InvalidOptionError, match="no backdoor"):
            device.MemcpyHost2Axdimm(pointer, data, 256, backdoor=True)
        with pytest.raises(InvalidOptionError, match="no backdoor"):
            transport.backdoor_read(0, 0, 64)
        with pytest.raises(DeviceTimeout, match=r"read 0x0 after 5e-06 s, awaited 0x1"):
            transport.poll(
                0, arbiter_window(CAPACITY) + 0x80, 1, 1,
                interval_fabric_cycles=8, timeout_fabric_cycles=1000,
            )  # fmt: skip
        for channel, address, nbytes in ((2, 0, 64), (0, 32, 64), (0, 0, 65), (0, CAPACITY, 64)):
            with pytest.raises(ValueError, match=r"channel must|whole lines|not within"):
                transport.read_lines(channel, address, nbytes)


def test_polls_by_the_hosts_time(path: Path) -> None:
    """A state that comes while the host sleeps is seen, also when the time is over by then."""
    served = ServedFile(path)
    time_s = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal time_s
        slept.append(seconds)
        time_s += seconds if len(slept) < 3 else 1.0
        if len(slept) == 3:
            served.store(arbiter_window(CAPACITY) + 0x40, 1, 8)

    transport = MappedTransport(served, fabric_mhz=100, now=lambda: time_s, sleep=sleep)
    with transport:
        found = transport.poll(
            0, arbiter_window(CAPACITY) + 0x80, 1, 1,
            interval_fabric_cycles=200, timeout_fabric_cycles=1000,
        )  # fmt: skip
    assert found == 1
    assert slept == pytest.approx([2e-6] * 3)


def test_a_host_that_was_away_asks_again(path: Path) -> None:
    """The time is over by when the register was read, but was not when it was about to be."""
    served = ServedFile(path)
    asked = 0

    def now() -> float:
        nonlocal asked
        asked += 1
        if asked == 3:
            served.store(arbiter_window(CAPACITY) + 0x40, 1, 8)
        return float(asked >= 3)

    with MappedTransport(served, now=now, sleep=lambda seconds: None) as transport:
        found = transport.poll(
            0, arbiter_window(CAPACITY) + 0x80, 1, 1,
            interval_fabric_cycles=200, timeout_fabric_cycles=1000,
        )  # fmt: skip
    assert found == 1


def uio(folder: Path, path: Path, sizes: dict[int, int]) -> None:
    for number, size in sizes.items():
        folder_of_map = folder / path.name / "maps" / f"map{number}"
        folder_of_map.mkdir(parents=True)
        (folder_of_map / "size").write_text(f"{size:#x}\n")


def test_maps_what_it_is_told(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = mmap.PAGESIZE
    words = np.arange(CHANNELS * CAPACITY // 8, dtype=np.uint64)
    path.write_bytes(words.tobytes())

    def first(**options: Any) -> tuple[int, int]:
        file = MappedFile(path, **options)
        result = file.load(0, 8), file.nbytes
        assert file.load(8, 4) == (file.load(8, 8) & 0xFFFFFFFF) == result[0] + 1
        file.close()
        file.close()
        return result

    assert first() == (0, CHANNELS * CAPACITY)
    assert first(offset=page) == (page // 8, CHANNELS * CAPACITY - page)
    assert first(offset=2 * page, nbytes=page) == (2 * page // 8, page)
    # A map of a UIO device is chosen by the page.
    monkeypatch.setattr(mapped, "UIO", tmp_path / "uio")
    uio(tmp_path / "uio", path, {0: 2 * page, 3: 4 * page})
    assert first() == (0, 2 * page)
    assert first(uio_map=3) == (3 * page // 8, 4 * page)
    assert first(uio_map=3, offset=page, nbytes=page) == (4 * page // 8, page)
    with pytest.raises(InvalidOptionError, match=r"uio_map is 1: .* has the maps \[0, 3\]"):
        MappedFile(path, uio_map=1)
    file = MappedFile(path)
    file.store(16, 0x1122334455667788, 8)
    file.store(20, 0xAABBCCDD, 4)
    file.write(64, np.arange(1, 65, dtype=np.uint8))
    assert path.read_bytes()[16:24] == bytes.fromhex("88776655ddccbbaa")
    assert path.read_bytes()[64:128] == bytes(range(1, 65))
    file.close()


def test_bad_devices_are_refused(path: Path, tmp_path: Path) -> None:
    page = mmap.PAGESIZE
    for name, options, message in (
        (tmp_path / "none", {}, "cannot be opened to read and write .No such file"),
        (tmp_path, {}, "cannot be opened to read and write .Is a directory"),
        (path, {"offset": 100}, f"offset is 100: expected a multiple of the page size, {page}"),
        (path, {"offset": -page}, "offset is -4096"),
        (path, {"offset": 1 << 30}, "expected at least 1"),
        (path, {"nbytes": 0}, "nbytes is 0"),
        (path, {"nbytes": 1 << 20}, "has 262144 bytes, expected 1048576 from byte 0"),
        (path, {"uio_map": 1}, "is no UIO device"),
        (Path("/dev/null"), {}, "does not tell its size"),
        (Path("/dev/null"), {"nbytes": page}, "cannot be mapped"),
    ):
        with pytest.raises((NoSuchDeviceError, InvalidOptionError), match=message):
            MappedFile(name, **options)
    if os.geteuid():
        path.chmod(0o400)
        with pytest.raises(NoSuchDeviceError, match="Permission denied"):
            MappedFile(path)
        path.chmod(0o600)
    for options, message in (
        ({"channels": 0}, "channels is 0"),
        ({"channels": 3}, "capacity_bytes is 87381: .* has 262144 bytes for 3 channels"),
        ({"capacity_bytes": CAPACITY * 2}, "capacity_bytes is 262144"),
        ({"capacity_bytes": 8192}, "capacity_bytes is 8192"),
        ({"word_bytes": 2}, "word_bytes is 2: expected 4 or 8"),
        ({"fabric_mhz": 0}, "fabric_mhz is 0"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            MappedTransport(path, **options)
    # Nothing was left open by them.
    with MappedTransport(path) as transport:
        with pytest.raises(DeviceInUseError, match="close it there first"):
            MappedTransport(path)
        with pytest.raises(IncompatibleDeviceError, match="magic 0x0"):
            Axdimm(transport)
    MappedTransport(path).close()


def test_registers_by_their_names(path: Path) -> None:
    with MappedTransport(ServedFile(path)) as transport, Axdimm(transport) as device:
        device.SetArbiterAcc(1)
        count = device.transport.capacity_bytes // 4
        registers = device.registers(1)
        assert registers.read("kernel.count") == 0
        registers.write("kernel.count", count)
        assert registers.read("kernel.count") == count


@pytest.mark.parametrize("name", ["golden", "cycles", "rtl"])
def test_simulations_are_on_the_link(name: str) -> None:
    options = BackendOptions(preset="tiny", settings={"host": "axi4"})
    with pytest.raises(ValueError, match="simulate a host on the link, got host='axi4'"):
        open_backend(name, options)


ON_AXI = configure("tiny", host="axi4")


@pytest.fixture(scope="module")
def module_on_axi() -> str:
    return to_verilog(ModuleWithDram(ON_AXI), "module_with_dram")


@pytest.mark.parametrize("stalls", ["none", "random"])
def test_adam_on_axi(stalls: str, module_on_axi: str) -> None:
    """Registers and copies as transactions on the ports of the module's RTL."""
    run_bench(
        module_on_axi,
        top="module_with_dram",
        module="hw_tests.driver.axdimm.mapped_bench",
        parameters={
            "capacity_bytes": ON_AXI.capacity_bytes,
            "channels": ON_AXI.channels,
            "stalls": stalls,
        },
    )
