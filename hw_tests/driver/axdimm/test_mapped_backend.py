"""The transport on a memory map: of a file in which a golden device answers, and of the RTL."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from hw.axdimm.config import configure
from hw.verilog.writer import to_verilog
from hw_tests.axdimm.system import ModuleWithDram
from hw_tests.bench import run_bench
from hw_tests.driver.axdimm.test_adam import Update
from hw_tests.soak import for_soak
from sw_driver.axdimm import Axdimm, BackendOptions, MappedTransport, open_backend
from sw_driver.axdimm.backends import mapped
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.axdimm.backends.mapped import MappedFile
from sw_driver.axdimm.transport import arbiter_window, kernel_window
from sw_driver.device import errors
from sw_driver.device.transport import DeviceTimeout

CAPACITY = 1 << 17
CHANNELS = 2
MODE, STATUS = (arbiter_window(CAPACITY) + offset for offset in (0x40, 0x80))


class GoldenInFile(GoldenTransport):
    """The golden model with its memory in a file."""

    def __init__(self, path: Path) -> None:
        self._rest: NDArray[np.uint8] = np.memmap(path, np.uint8, "r+")
        super().__init__(channels=CHANNELS, capacity_bytes=CAPACITY)

    def _memory(self) -> NDArray[np.uint8]:
        memory, self._rest = self._rest[:CAPACITY], self._rest[CAPACITY:]
        return memory


class ServedFile(MappedFile):
    """The map of a file: registers are in it what a golden device answers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.device = GoldenInFile(path)

    def load(self, offset: int) -> int:
        line = self.device.read_lines(*divmod(offset, CAPACITY), 64)
        super().write(offset, line)
        return super().load(offset)

    def store(self, offset: int, value: int) -> None:
        super().store(offset, value)
        line = np.zeros(64, np.uint8)
        line[:8] = super().read(offset, 8)
        self.device.write_lines(*divmod(offset, CAPACITY), line)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    result = tmp_path / "module"
    result.write_bytes(bytes(CHANNELS * CAPACITY))
    return result


def test_adam_on_a_file(path: Path) -> None:
    """Both channels through the public API; all of the memory is compared, bit for bit."""
    rng = np.random.default_rng(8)
    windows = kernel_window(CAPACITY)
    memory = np.memmap(path, np.uint8, "r+").reshape(CHANNELS, CAPACITY)
    memory[:, :windows] = rng.integers(0, 256, (CHANNELS, windows), np.uint8)
    expected = memory.copy()
    with MappedTransport(ServedFile(path)) as transport, Axdimm(transport) as device:
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
        with pytest.raises(errors.InvalidArgumentError, match="no backdoor"):
            device.MemcpyHost2Axdimm(pointer, data, 256, backdoor=True)
        for channel, address, nbytes in ((2, 0, 64), (0, 32, 64), (0, 0, 65), (0, CAPACITY, 64)):
            with pytest.raises(ValueError, match=r"channel must|whole lines|not within"):
                transport.read_lines(channel, address, nbytes)
    with pytest.raises(errors.ClosedError, match="closed"):
        transport.read_lines(0, 0, 64)
    transport.close()


def test_polls_by_the_hosts_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that comes while the host sleeps is seen, also when the time is over by then."""
    served = ServedFile(path)
    time_s = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal time_s
        slept.append(seconds)
        time_s += seconds if len(slept) < 3 else 1.0
        if len(slept) == 3:
            served.store(MODE, 1)

    monkeypatch.setattr(mapped, "time", SimpleNamespace(monotonic=lambda: time_s, sleep=sleep))
    times = {"interval_fabric_cycles": 200, "timeout_fabric_cycles": 1000}
    with MappedTransport(served, fabric_mhz=100) as transport:
        assert transport.poll(0, STATUS, 1, 1, **times) == 1
        assert slept == pytest.approx([2e-6] * 3)
        with pytest.raises(DeviceTimeout, match=r"read 0x1 after 1e-05 s, awaited 0x0"):
            transport.poll(0, STATUS, 1, 0, **times)


def test_the_size_of_a_uio_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is that of its map 0, as Linux tells it; the file of the device has none."""
    monkeypatch.setattr(mapped, "UIO", path.parent / "uio")
    maps = path.parent / "uio" / path.name / "maps/map0"
    maps.mkdir(parents=True)
    (maps / "size").write_text(f"{CAPACITY:#x}\n")
    with MappedTransport(path, channels=1) as transport:
        assert transport.capacity_bytes == CAPACITY


def test_bad_devices_are_refused(path: Path, tmp_path: Path) -> None:
    for name, message in (
        (tmp_path / "none", "cannot be mapped to read and write .*No such file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/null"), "/dev/null"),
    ):
        with pytest.raises(errors.InvalidArgumentError, match=message):
            MappedTransport(name)
    numbers = [("channels", each) for each in (0, 2.0, True, "2", float("nan"), None)]
    numbers += [("fabric_mhz", each) for each in (0, True, "200", float("nan"), None)]
    for number, value in numbers:
        said = f"{number} is {value!r}: expected a"
        with pytest.raises(errors.InvalidArgumentError, match=said):
            MappedTransport(path, **{number: value})
    for channels in (3, 32):
        said = f"has 262144 bytes for {channels} channels: expected, for each, a power of two"
        with pytest.raises(errors.InvalidArgumentError, match=said):
            MappedTransport(path, channels=channels)
    # Nothing was left open by them.
    with MappedTransport(path) as transport:
        with pytest.raises(errors.DeviceInUseError, match="close it there first"):
            MappedTransport(path)
        with pytest.raises(errors.IncompatibleDeviceError, match="magic 0x0"):
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


@pytest.mark.parametrize("stalls", [*for_soak("none"), "random"])
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
