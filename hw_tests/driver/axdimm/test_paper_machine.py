"""The paper's machine as `make sim` simulates it: 16 lanes, 16 KB blocks, both channels at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hw_tests.driver.adam import adam_constants, adam_step
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends.rtl import VerilatedTransport
from sw_driver.axdimm.figures import ceiling_mparams_per_s
from sw_driver.axdimm.registers import arbiter_registers
from sw_driver.device.errors import ClosedError

BLOCK = 16384 // 4
LINE = 64
SETTINGS = {"lr": 2e-3, "beta1": 0.85, "beta2": 0.995, "eps": 1e-7, "weight_decay": 0.02}


@pytest.fixture(scope="module")
def device() -> Iterator[Axdimm]:
    with Axdimm("rtl") as device:
        yield device


def transport_of(device: Axdimm) -> VerilatedTransport:
    transport = device.transport
    assert isinstance(transport, VerilatedTransport)
    return transport


@pytest.mark.parametrize(
    "counts",
    [(1, 15), (16, 17), (BLOCK, BLOCK + 1), (3 * BLOCK + 7, 2 * BLOCK - 1), (50_000, 50_001)],
    ids=str,
)
def test_both_channels_are_bit_exact(device: Axdimm, counts: tuple[int, int]) -> None:
    transport = transport_of(device)
    t = sum(counts)
    rng = np.random.default_rng(t)
    before, pointers, values = [], [], []
    for channel, count in enumerate(counts):
        tensors = {name: device.MallocAxdimm(4 * count, channel) for name in "pmvg"}
        data = {name: rng.standard_normal(count).astype(np.float32) for name in "pmvg"}
        data["v"] = np.abs(data["v"]) * np.float32(1e-3)
        # What no output may touch carries a pattern of its own.
        filler = rng.integers(0, 256, transport.capacity_bytes // 16, np.uint8)
        transport.backdoor_write(channel, 0, filler)
        for name, pointer in tensors.items():
            device.MemcpyHost2Axdimm(pointer, data[name], data[name].nbytes)
        before.append(transport.backdoor_read(channel, 0, transport.capacity_bytes))
        pointers.append(tensors)
        values.append(data)
    runs = []
    for channel, count in enumerate(counts):
        device.SetArbiterAcc(channel)
        p, m, v, g = (pointers[channel][name] for name in "pmvg")
        runs.append(device.RunAdamOnAxdimmAsync(p, m, v, g, count, *SETTINGS.values(), t, channel))
    results = [run.wait(timeout=120) for run in runs]
    constants = adam_constants(t=t, **SETTINGS)
    for channel, count in enumerate(counts):
        device.SetArbiterNormal(channel)
        data = values[channel]
        expected = dict(
            zip("pmv", adam_step(*(data[name] for name in "pgmv"), constants), strict=True)
        )
        memory = before[channel]
        for name, array in expected.items():
            address = pointers[channel][name].address
            memory[address : address + 4 * count] = array.view(np.uint8)
        after = transport.backdoor_read(channel, 0, transport.capacity_bytes)
        wrong = np.flatnonzero(after != memory)
        assert wrong.size == 0, f"{wrong.size} bytes differ, the first at {wrong[0]:#x}"
        beats = -(-count // 16)
        assert results[channel].beats_read == 4 * beats
        assert results[channel].beats_written == 3 * beats
        for pointer in pointers[channel].values():
            device.FreeAxdimm(pointer)
    if min(counts) >= 50_000:
        cycles = max(result.fabric_cycles for result in results)
        speed = sum(counts) / cycles * transport.fabric_mhz
        assert speed / ceiling_mparams_per_s(2) >= 0.8


def test_scattered_copies_lose_nothing(device: Axdimm) -> None:
    """Lines that each need another row are slower than the link; they must wait, not vanish."""
    transport = transport_of(device)
    rng = np.random.default_rng(5)
    lines = 64 * 1024
    pointer = device.MallocAxdimm(lines * LINE, 0)
    content = rng.integers(0, 256, (lines, LINE), np.uint8)
    device.MemcpyHost2Axdimm(pointer, content, content.nbytes, backdoor=True)
    # All in one bank, so that each write closes the row of the one before; then anywhere.
    places = [*range(0, lines, 2048), *rng.integers(0, lines, 600)] * 2
    for place in places:
        content[place] = rng.integers(0, 256, LINE, np.uint8)
        device.MemcpyHost2Axdimm(pointer + int(place) * LINE, content[place], LINE)
    stored = np.empty_like(content)
    device.MemcpyAxdimm2Host(stored, pointer, stored.nbytes, backdoor=True)
    assert (stored == content).all()
    line = np.empty(LINE, np.uint8)
    for place in rng.integers(0, lines, 200):
        device.MemcpyAxdimm2Host(line, pointer + int(place) * LINE, LINE)
        assert (line == content[place]).all()
    assert arbiter_registers(transport, 0).read_field("overflows", "count") == 0
    device.FreeAxdimm(pointer)


def test_transport_refuses_what_is_not_there(device: Axdimm) -> None:
    transport = transport_of(device)
    end = transport.capacity_bytes
    data = np.zeros(LINE, np.uint8)
    with pytest.raises(ValueError, match="channel must be from 0 to 1, got 2"):
        transport.fabric_cycles(2)
    with pytest.raises(ValueError, match=f"64 bytes at {end:#x} are not within"):
        transport.write_lines(0, end, data)
    with pytest.raises(ValueError, match="64 bytes at 0x20 are not whole lines"):
        transport.read_lines(0, 32, LINE)
    with pytest.raises(ValueError, match="not within"):
        transport.backdoor_read(0, end - 1, 2)


def test_a_closed_transport_says_so() -> None:
    with Axdimm("rtl:tiny") as device:
        transport = transport_of(device)
    with pytest.raises(ClosedError, match="closed"):
        transport.fabric_cycles(0)
    with pytest.raises(ClosedError, match="closed"):
        transport.write_lines(0, 0, np.zeros(LINE, np.uint8))
