"""Compressed allocations: every byte comes back, and what has been moved is counted."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from hw.memory_node.config import MEMORY_NODE_PRESETS
from hw_tests.driver.memory_node.compression import compressed, expanded
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.memory_node import DeviceNode, Direction, Placement
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.memory_node.backends.rtl import RtlNetwork
from sw_driver.memory_node.compression import CompressionStatistics, compress, expand
from sw_driver.memory_node.dma import DmaNetwork

OUT, BACK = Direction.LOCAL_TO_REMOTE, Direction.REMOTE_TO_LOCAL
BLOCK = 4096
LOCAL_BYTES = 1 << 20


def _device(network: DmaNetwork | None = None, *, page_bytes: int = 2 * BLOCK) -> DeviceNode:
    network = network or GoldenNetwork(local_bytes=LOCAL_BYTES, share_bytes=1 << 20)
    return DeviceNode(network, page_bytes=page_bytes)


def _values(numbers: np.random.Generator, nbytes: int, share: float) -> bytes:
    """Floats of which a share is not zero, minus zero among them."""
    values = numbers.standard_normal(-(-nbytes // 4)).astype(np.float32)
    values[numbers.random(len(values)) < 0.01] = -0.0
    values[numbers.random(len(values)) >= share] = 0
    return values.tobytes()[:nbytes]


def _moved(values: bytes) -> int:
    """Bytes that go over links for an allocation, by the golden model."""
    values += bytes(-len(values) % 64)
    return sum(len(compressed(values[at : at + BLOCK])) for at in range(0, len(values), BLOCK))


@pytest.mark.parametrize("lines", [1, 2, 3, 31, 32, 33, 63, 64])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.4, 0.9, 1.0])
def test_blocks_are_stored_as_the_golden_model_stores_them(lines: int, share: float) -> None:
    block = _values(np.random.default_rng(lines), 64 * lines, share)
    stored = compress(block)
    assert stored == compressed(block)
    assert expand(stored, len(block)) == expanded(stored, lines) == block


@pytest.mark.parametrize("placement", Placement)
def test_what_was_copied_out_comes_back_and_is_counted(placement: Placement) -> None:
    numbers = np.random.default_rng(3)
    device = _device()
    expected = CompressionStatistics()
    for nbytes in (1, 64, 5000, 100_000):
        there, back = device.cuda_malloc(nbytes), device.cuda_malloc(nbytes)
        remote = device.cuda_malloc_remote(nbytes, placement=placement, compressed=True)
        # Written over again, with blocks that are stored in more lines and in fewer.
        for share in (0.5, 0.0, 1.0, 0.1):
            values = _values(numbers, nbytes, share)
            device.write(there, np.frombuffer(values, np.uint8))
            device.cuda_memcpy_async(remote, there, nbytes, OUT)
            device.cuda_memcpy_async(back, remote, nbytes, BACK)
            device.synchronize()
            assert device.read(back, nbytes).tobytes() == values
            own = device.read(there, nbytes).tobytes()
            assert own == values
            expected.bytes_out += -(-nbytes // 64) * 64
            expected.moved_out += _moved(values)
        device.cuda_free(there)
        device.cuda_free(back)
    expected.bytes_back, expected.moved_back = expected.bytes_out, expected.moved_out
    assert device.compression == expected
    assert device.compression.ratio == expected.bytes_out / expected.moved_out > 1.5


def test_blocks_of_an_allocation_one_by_one() -> None:
    numbers = np.random.default_rng(4)
    device = _device()
    size = 10 * BLOCK + 100
    values = bytearray(_values(numbers, size, 0.3))
    there, back = device.cuda_malloc(size), device.cuda_malloc(size)
    remote = device.cuda_malloc_remote(size, compressed=True)
    device.write(there, np.frombuffer(bytes(values), np.uint8))
    device.cuda_memcpy_async(remote, there, size, OUT)
    for _ in range(30):
        first = int(numbers.integers(11))
        end = min(first + int(numbers.integers(1, 4)), 11)
        start, end = first * BLOCK, min(end * BLOCK, size)
        values[start:end] = _values(numbers, end - start, numbers.choice([0.0, 0.6, 1.0]))
        device.write(there + start, np.frombuffer(bytes(values[start:end]), np.uint8))
        device.cuda_memcpy_async(remote + start, there + start, end - start, OUT)
        device.synchronize()
    for start in range(0, size, BLOCK):
        end = min(start + BLOCK, size)
        device.cuda_memcpy_async(back + start, remote + start, end - start, BACK)
    device.synchronize()
    assert device.read(back, size).tobytes() == bytes(values)


def test_memory_that_was_compressed_is_used_again() -> None:
    numbers = np.random.default_rng(5)
    device = _device()
    size = 5 * BLOCK
    there, back = device.cuda_malloc(size), device.cuda_malloc(size)
    for number, share in enumerate((0.2, 1.0, 0.2, 0.1)):
        remote = device.cuda_malloc_remote(size, compressed=number % 2 == 0)
        # Nothing of it has been written: any bytes may come, but they do.
        device.cuda_memcpy_async(back, remote, size, BACK)
        values = _values(numbers, size, share)
        device.write(there, np.frombuffer(values, np.uint8))
        device.cuda_memcpy_async(remote, there, size, OUT)
        device.cuda_memcpy_async(back, remote, size, BACK)
        device.synchronize()
        assert device.read(back, size).tobytes() == values
        device.cuda_free_remote(remote)


def test_lines_in_rtl_nodes_are_those_of_the_golden_model() -> None:
    network = RtlNetwork(devices=2, config=MEMORY_NODE_PRESETS["tiny"], local_bytes=LOCAL_BYTES)
    numbers = np.random.default_rng(6)
    device = _device(network, page_bytes=BLOCK)
    cycles = []
    size = 40 * BLOCK - 200
    values = _values(numbers, size, 0.4)
    there, back = device.cuda_malloc(size), device.cuda_malloc(size)
    device.write(there, np.frombuffer(values, np.uint8))
    moved = 0
    for is_compressed in (False, True):
        remote = device.cuda_malloc_remote(size, compressed=is_compressed)
        begun = network.cycles()
        device.cuda_memcpy_async(remote, there, size, OUT)
        device.cuda_memcpy_async(back, remote, size, BACK)
        device.synchronize()
        cycles.append(network.cycles() - begun)
        assert device.read(back, size).tobytes() == values
        moved += _moved(values) if is_compressed else 40 * BLOCK - 192
        for way in ("lines_written", "lines_read"):
            lines = sum(each.link(link, way) for each in network.ports.registers for link in (0, 1))
            assert 64 * lines == moved
    assert asdict(device.compression)["moved_out"] == _moved(values)
    assert cycles[1] < 0.6 * cycles[0]
    network.close()


def test_refusals() -> None:
    device = _device()
    there = device.cuda_malloc(4 * BLOCK)
    remote = device.cuda_malloc_remote(2 * BLOCK + 64, compressed=True)
    for offset, nbytes in ((64, BLOCK), (0, 64), (BLOCK, BLOCK + 32), (0, BLOCK + 64)):
        for dst, src, way in ((remote + offset, there, OUT), (there, remote + offset, BACK)):
            with pytest.raises(
                InvalidArgumentError, match=r"expected (multiples of 4096|a multiple of 64)"
            ):
                device.cuda_memcpy_async(dst, src, nbytes, way)
    device.synchronize()
    assert device.compression == CompressionStatistics()
    assert device.compression.ratio == 1
    with pytest.raises(
        InvalidArgumentError, match="page_bytes of the device to be a multiple of 4096"
    ):
        _device(page_bytes=64).cuda_malloc_remote(64, compressed=True)
