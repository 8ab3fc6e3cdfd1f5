"""Device-nodes on memory-nodes in RTL: every byte, every count, dead links, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from hw_tests.memory_node.link.formula import fabric_cycles
from sw_driver.device.errors import ClosedError, InvalidArgumentError, RemoteMemoryError
from sw_driver.device.transport import DeviceFault
from sw_driver.memory_node import DeviceNode, Direction, Placement
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.memory_node.backends.rtl import RtlNetwork
from sw_driver.memory_node.dma import DmaNetwork
from sw_driver.memory_node.packets import LINE_BYTES, Operation, Packet
from sw_driver.predict.memory_node import LinkCycles

TINY = MEMORY_NODE_PRESETS["tiny"]
WIDE = replace(TINY, links=4, link=replace(TINY.link, dead_cycles=1024))
OUT, BACK = Direction.LOCAL_TO_REMOTE, Direction.REMOTE_TO_LOCAL
LOCAL_BYTES = 1 << 20
PACKET_BYTES = 4096
_QUEUE_CYCLES = 2
"""Until what is sent can be taken by a link."""


@pytest.fixture
def pair() -> Iterator[RtlNetwork]:
    """Two devices and two nodes."""
    network = RtlNetwork(devices=2, config=TINY, local_bytes=LOCAL_BYTES)
    yield network
    network.close()


def _random_copies(network: DmaNetwork, devices: int, copies: int) -> list[bytes]:
    """Copies of random sizes on random streams of all devices; what is in their memories then."""
    numbers = np.random.default_rng(5)
    nodes = [DeviceNode(network, number, page_bytes=PACKET_BYTES) for number in range(devices)]
    for device in nodes:
        values = numbers.integers(0, 256, LOCAL_BYTES // 2, np.uint8)
        first = device.cuda_malloc(LOCAL_BYTES // 2)
        device.write(first, values)
    streams = [[device.stream() for _ in range(3)] for device in nodes]
    for _ in range(copies):
        number = int(numbers.integers(devices))
        device, stream = nodes[number], streams[number][numbers.integers(3)]
        lines = int(numbers.integers(1, 300))
        source = LINE_BYTES * int(numbers.integers(LOCAL_BYTES // 2 // LINE_BYTES - lines))
        size = LINE_BYTES * lines
        try:
            remote = device.cuda_malloc_remote(size, placement=numbers.choice(list(Placement)))
            back = device.cuda_malloc(size)
        except MemoryError:
            continue
        device.cuda_memcpy_async(remote, source, size, OUT, stream)
        device.cuda_memcpy_async(back, remote, size, BACK, stream)
    for each in streams:
        for stream in each:
            stream.synchronize()
    return [network.local(number).tobytes() for number in range(devices)]


@pytest.mark.parametrize(
    ("devices", "config"),
    [(2, TINY), pytest.param(4, WIDE, marks=pytest.mark.soak)],
    ids=["two", "four"],
)
def test_memories_are_those_with_golden_nodes(devices: int, config: MemoryNodeConfig) -> None:
    golden = GoldenNetwork(
        devices=devices, links=config.links, local_bytes=LOCAL_BYTES, share_bytes=config.group_bytes
    )
    network = RtlNetwork(devices=devices, config=config, local_bytes=LOCAL_BYTES)
    try:
        assert _random_copies(network, devices, 60) == _random_copies(golden, devices, 60)
    finally:
        network.close()


def test_threads_past_the_driver_are_one_at_a_time(pair: RtlNetwork) -> None:
    """One copies there and back, others let time pass and ask the ends of links."""
    device = DeviceNode(pair, 0)
    values = np.random.default_rng(2).integers(0, 256, 4 * PACKET_BYTES, np.uint8)
    source, back = device.cuda_malloc(values.size), device.cuda_malloc(values.size)
    remote = device.cuda_malloc_remote(values.size)
    device.write(source, values)

    def copies() -> None:
        for _ in range(10):
            device.cuda_memcpy_async(remote, source, values.size, OUT)
            device.cuda_memcpy_async(back, remote, values.size, BACK)
            device.synchronize()

    def asks() -> int:
        before = pair.ports.cycles()
        for _ in range(300):
            pair.ports.advance(3)
            assert not pair.ports.dead(0, 0)
        return pair.ports.cycles() - before

    with ThreadPoolExecutor(3) as threads:
        copying, *asking = [threads.submit(call) for call in (copies, asks, asks)]
        copying.result(60)
        assert min(each.result(60) for each in asking) >= 900
    assert (device.read(back, values.size) == values).all()


def test_the_same_calls_take_the_same_cycles() -> None:
    cycles = []
    for _ in range(2):
        network = RtlNetwork(devices=2, config=TINY, local_bytes=LOCAL_BYTES)
        _random_copies(network, 2, 10)
        cycles.append(network.cycles())
        network.close()
    assert cycles[0] == cycles[1] > 0


def test_no_output_depends_on_an_input_in_the_same_cycle(
    pair: RtlNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    consistent = []
    monkeypatch.setattr(
        pair.ports, "advance", lambda cycles: consistent.append(pair.ports.consistent(cycles))
    )
    device = DeviceNode(pair, 0, page_bytes=PACKET_BYTES)
    there, remote = device.cuda_malloc(60_000), device.cuda_malloc_remote(60_000)
    stream = device.stream()
    for _ in range(2):
        device.cuda_memcpy_async(remote, there, 60_000, OUT, stream)
        device.cuda_memcpy_async(there, remote, 60_000, BACK, stream)
    stream.synchronize()
    assert len(consistent) > 20
    assert all(consistent)


def test_counts(pair: RtlNetwork) -> None:
    device = DeviceNode(pair, 1, page_bytes=PACKET_BYTES)
    size = 10 * PACKET_BYTES
    there, remote = device.cuda_malloc(size), device.cuda_malloc_remote(size)
    device.cuda_memcpy_async(remote, there, size, OUT)
    device.cuda_memcpy_async(there, remote, size // 2, BACK)
    device.synchronize()
    # Device 1 has node 0 at its left side, as the owner of its group 1, and group 0 of node 1.
    lines = size // 2 // LINE_BYTES
    for node, mine in ((0, 1), (1, 0)):
        registers = pair.ports.registers[node]
        counts = {
            name: [registers.link(link, name) for link in range(2)]
            for name in ("requests", "lines_written", "lines_read", "taken", "sent")
        }
        expected = {name: [0, 0] for name in counts} | {
            name: [count if link == mine else 0 for link in range(2)]
            for name, count in (
                ("requests", 5 + (3 if node == 0 else 2)),
                ("lines_written", lines),
                ("lines_read", (3 if node == 0 else 2) * PACKET_BYTES // LINE_BYTES),
            )
        }
        expected["taken"] = [
            a + b for a, b in zip(expected["requests"], expected["lines_written"], strict=True)
        ]
        expected["sent"] = [
            a + b for a, b in zip(expected["requests"], expected["lines_read"], strict=True)
        ]
        assert counts == expected
        assert [registers.group(group, "owner") for group in range(2)] == (
            [0, 2] if node == 0 else [2, 0]
        )
        assert registers.node("dead") == 0


def test_what_is_not_a_devices_own_is_refused(pair: RtlNetwork) -> None:
    registers = pair.ports.registers[0]
    registers.allocate(0, owner=2, base=0, size=TINY.group_bytes)
    device = DeviceNode(pair, 0, placement=Placement.LOCAL, page_bytes=PACKET_BYTES)
    left = device.cuda_malloc_remote(TINY.group_bytes)
    right = device.cuda_malloc_remote(64)
    there = device.cuda_malloc(64)
    device.cuda_memcpy_async(right, there, 64, OUT)
    with pytest.raises(RemoteMemoryError, match=r"memory-node 1 refused 64 bytes.*OWNER"):
        device.synchronize()
    registers.allocate(0, owner=0, base=0, size=PACKET_BYTES)
    device.cuda_memcpy_async(right, there, 64, OUT)
    device.cuda_memcpy_async(left, there, 64, OUT)
    device.synchronize()
    assert registers.group(0, "refused_owner") == 1


@pytest.mark.soak
def test_packets_for_a_device_beyond_pass_through() -> None:
    network = RtlNetwork(devices=4, config=WIDE, local_bytes=LOCAL_BYTES)
    ports = network.ports
    ports.advance(400)
    link = LinkCycles(WIDE.link, wire_cycles=1)
    sizes = [(1, 64), (1, 0), (3, 7), (20, 64)]
    for packets, lines in sizes:
        data = np.random.default_rng(1).integers(0, 256, LINE_BYTES * lines, np.uint8).tobytes()
        # From device 0 through node 1 to device 1, which has it at its left side.
        message = Packet(2, 0, Operation.MESSAGE, 0, 9, lines, 0, data)
        ports.send(0, WIDE.group_links, 0, message.flits() * packets)
        cycles = fabric_cycles(link, packets=packets, lines=lines, stops=1)
        ports.advance(cycles + _QUEUE_CYCLES - 1)
        came = list(ports.received(1, 0))
        assert len(came) == packets * (1 + lines) - 1
        ports.advance(1)
        came += ports.received(1, 0)
        # The date line is in the node that it passed.
        assert {channel for channel, _ in came} == {1}
        flits = [flit.payload for _, flit in came]
        assert Packet.of(flits[-1 - lines :]) == message
        assert flits == flits[: 1 + lines] * packets
    assert ports.registers[0].link(0, "passed") == sum(packets for packets, _ in sizes)
    network.close()


@pytest.mark.soak
@pytest.mark.parametrize(("cycles", "coming_back"), [(300, False), (1500, True)])
def test_a_dead_link_costs_time_only(cycles: int, coming_back: bool) -> None:
    """It dies while data go out, and while they come back."""
    network = RtlNetwork(devices=4, config=WIDE, local_bytes=LOCAL_BYTES)
    device = DeviceNode(network, 0, page_bytes=PACKET_BYTES)
    size = 100_000
    values = np.random.default_rng(2).integers(0, 256, size, np.uint8)
    there, back = device.cuda_malloc(size), device.cuda_malloc(size)
    remote = device.cuda_malloc_remote(size)
    device.write(there, values)
    stream = device.stream()
    device.cuda_memcpy_async(remote, there, size, OUT, stream)
    device.cuda_memcpy_async(back, remote, size, BACK, stream)
    while network.cycles() < cycles:
        assert not stream.idle
    lost = network._links[0][1].under_way.values()
    assert lost
    assert all(request.piece.write != coming_back for request in lost)
    network.ports.cut(0, 1)
    stream.synchronize()
    assert device.read(back, size).tobytes() == values.tobytes()
    assert [network.ports.dead(0, link) for link in range(4)] == [False, True, False, False]
    network.ports.cut(0, 0)
    device.cuda_memcpy_async(back, remote, size, BACK, stream)
    with pytest.raises(RemoteMemoryError, match="reaches its left memory-node no more"):
        stream.synchronize()
    assert network.ports.registers[-1].node("dead") != 0
    network.close()


def test_a_register_that_is_not_there(pair: RtlNetwork) -> None:
    with pytest.raises(DeviceFault, match="memory-node 1 was refused"):
        pair.ports.registers[0].group(2, "owner")


def test_a_closed_network_is_told() -> None:
    network = RtlNetwork(devices=2, config=TINY, local_bytes=LOCAL_BYTES)
    network.close()
    with pytest.raises(ClosedError):
        network.cycles()


def test_refusals() -> None:
    with pytest.raises(InvalidArgumentError, match="devices is 1: expected an integer from 2"):
        RtlNetwork(devices=1, config=TINY, local_bytes=LOCAL_BYTES)
    with pytest.raises(InvalidArgumentError, match="groups is 1: expected nodes with two groups"):
        RtlNetwork(config=replace(TINY, groups=1), local_bytes=LOCAL_BYTES)
