"""Copies over the link and through the backdoor, compared with the whole memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hw.axdimm.config import configure
from hw_tests.driver.device_memory import fill, settle, snapshot
from hw_tests.driver.transports import WatchedTransport
from sw_driver.axdimm import Axdimm, CopiedBytes


@pytest.mark.parametrize("backdoor", [False, True])
def test_copies_of_any_place_and_size_change_nothing_else(
    device: Axdimm, watched: WatchedTransport, backdoor: bool
) -> None:
    rng = np.random.default_rng(5)
    expected = fill(watched, rng)
    pointers = [device.MallocAxdimm(3000, channel) for channel in (0, 1)]
    sizes = [0, 1, 63, 64, 65, 127, 128, 129, 1000]
    for case in range(3 * len(sizes)):
        pointer = pointers[case % 2]
        nbytes = sizes[case % len(sizes)]
        offset = [0, 1, 32, 63, 64, int(rng.integers(3000 - nbytes + 1))][rng.integers(6)]
        place = pointer + offset
        data = rng.integers(0, 256, nbytes, dtype=np.uint8)
        device.MemcpyHost2Axdimm(place, data, nbytes, backdoor=backdoor)
        expected[place.channel][place.address : place.address + nbytes] = data
        back = np.zeros(nbytes, dtype=np.uint8)
        device.MemcpyAxdimm2Host(back, place, nbytes, backdoor=backdoor)
        assert np.array_equal(back, data), (offset, nbytes)
    for channel in (0, 1):
        settle(device, channel)
    for found, wanted in zip(snapshot(watched), expected, strict=True):
        assert np.array_equal(found, wanted)


def test_copies_go_over_the_link_unless_told_otherwise(
    device: Axdimm, watched: WatchedTransport
) -> None:
    data = bytes(range(256))
    pointer = device.MallocAxdimm(256, 0)
    device.MemcpyHost2Axdimm(pointer, data, 256)
    device.MemcpyAxdimm2Host(bytearray(64), pointer, 64)
    assert watched.link_lines >= 5
    lines = watched.link_lines
    device.MemcpyHost2Axdimm(pointer, data, 128, backdoor=True)
    device.MemcpyAxdimm2Host(bytearray(32), pointer, 32, backdoor=True)
    assert watched.link_lines == lines
    assert device.copied_bytes(0) == CopiedBytes(
        link_to_device=256, link_to_host=64, backdoor_to_device=128, backdoor_to_host=32
    )
    assert device.copied_bytes(1) == CopiedBytes()


def test_a_backdoor_driver_says_so(backend) -> None:
    watched = WatchedTransport(backend)
    with Axdimm(watched, backdoor=True) as device:
        lines = watched.link_lines
        pointer = device.MallocAxdimm(64, 0)
        device.MemcpyHost2Axdimm(pointer, bytes(64), 64)
        assert watched.link_lines == lines
        device.MemcpyHost2Axdimm(pointer, bytes(64), 64, backdoor=False)
        assert watched.link_lines == lines + 1
        assert "backdoor" in repr(device)


@pytest.mark.parametrize("make", [bytearray, memoryview, np.array])
def test_host_buffers_may_be_anything_contiguous(device: Axdimm, make) -> None:
    words = np.arange(40, dtype=np.float32).reshape(5, 8)
    pointer = device.MallocAxdimm(words.nbytes, 1)
    source = words if make is np.array else make(words.tobytes())
    device.MemcpyHost2Axdimm(pointer, source, words.nbytes)
    back = np.zeros((5, 8), dtype=np.float32)
    device.MemcpyAxdimm2Host(back, pointer, back.nbytes)
    assert np.array_equal(back, words)
    destination = bytearray(words.nbytes)
    device.MemcpyAxdimm2Host(destination, pointer, words.nbytes)
    assert destination == words.tobytes()


def test_channels_copy_from_threads_at_once(device: Axdimm) -> None:
    def work(channel: int) -> None:
        rng = np.random.default_rng(channel)
        for _ in range(10):
            nbytes = int(rng.integers(1, 5000))
            data = rng.integers(0, 256, nbytes, dtype=np.uint8)
            pointer = device.MallocAxdimm(nbytes, channel)
            device.MemcpyHost2Axdimm(pointer, data, nbytes)
            back = np.zeros_like(data)
            device.MemcpyAxdimm2Host(back, pointer, nbytes)
            assert np.array_equal(back, data)
            device.FreeAxdimm(pointer)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (0, 1)))
    for channel in (0, 1):
        statistics = device.memory(channel)
        assert statistics.free_bytes == statistics.total_bytes


@pytest.mark.parametrize("backend", ["golden", "cycles"])
def test_the_models_have_the_clock_of_the_configuration(backend: str) -> None:
    preset = "axdimm_ddr4_2400"
    with Axdimm(f"{backend}:{preset}") as device:
        assert device.transport.fabric_mhz == configure(preset).fabric_mhz
        assert device.transport.fabric_mhz == pytest.approx(300, rel=1e-2)
