"""The DMA of devices over links that are slow, out of step with each other, and die."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest

from golden.memory_node.node import MemoryNode, PacketFlit
from sw_driver.device.errors import RemoteMemoryError
from sw_driver.memory_node import DeviceNode, Direction, Placement
from sw_driver.memory_node.dma import DmaNetwork
from sw_driver.memory_node.packets import LINE_BYTES, Flit, Operation, Packet

OUT, BACK = Direction.LOCAL_TO_REMOTE, Direction.REMOTE_TO_LOCAL
SIDE_LINKS = 3


class SlowLinks:
    """Two devices and two golden nodes; each link passes a random number of flits at a time."""

    devices = 2
    side_links = SIDE_LINKS
    local_bytes = 1 << 18
    share_bytes = 1 << 18
    timed = True

    def __init__(self, seed: int, dying: dict[tuple[int, int], int]) -> None:
        self._numbers = np.random.default_rng(seed)
        self._dying = dying
        """Links that die, after so many packets."""
        self._now = 0
        self._nodes = [
            MemoryNode(node=2 * n + 1, links=2 * SIDE_LINKS, groups=2, group_bytes=1 << 18)
            for n in range(2)
        ]
        for number, node in enumerate(self._nodes):
            for group, device in zip(node.groups, (number, 1 - number), strict=True):
                group.size, group.owner = 1 << 18, 2 * device
        self._asked = {
            (device, link): deque[tuple[int, list[Flit]]]()
            for device in range(2)
            for link in range(2 * SIDE_LINKS)
        }
        self._answers = {each: deque[tuple[int, Flit]]() for each in self._asked}
        self._arrived = {each: deque[tuple[int, Flit]]() for each in self._asked}
        self.packets = dict.fromkeys(self._asked, 0)
        self.most_under_way = 0

    def send(self, device: int, link: int, channel: int, flits: list[Flit]) -> None:
        assert [flit.head for flit in flits] == [True] + [False] * (len(flits) - 1)
        # Reads that come later do not wait behind more data than keep the link busy.
        assert len(flits) == 1 or self.unsent(device, link) <= 32
        self._asked[device, link].append((channel, flits))
        self.packets[device, link] += 1

    def unsent(self, device: int, link: int) -> int:
        return sum(len(flits) for _, flits in self._asked[device, link])

    def received(self, device: int, link: int) -> Iterator[tuple[int, Flit]]:
        while self._arrived[device, link]:
            yield self._arrived[device, link].popleft()

    def dead(self, device: int, link: int) -> bool:
        return self._dying.get((device, link), 1) <= 0

    def advance(self, cycles: int) -> None:
        self._now += cycles
        for (device, link), asked in self._asked.items():
            self.most_under_way = max(self.most_under_way, len(asked))
            if self.dead(device, link):
                asked.clear()
                self._answers[device, link].clear()
                continue
            if asked and self._numbers.random() < 0.5:
                channel, flits = asked.popleft()
                right, number = divmod(link, SIDE_LINKS)
                node = self._nodes[device if right else 1 - device]
                sent = node.take(
                    number if right else SIDE_LINKS + number,
                    channel,
                    tuple(PacketFlit(*flit) for flit in flits),
                )
                assert sent is not None
                self._answers[device, link].extend((sent.channel, Flit(*f)) for f in sent.flits)
                if (device, link) in self._dying:
                    self._dying[device, link] -= 1
            for _ in range(self._numbers.integers(0, 40)):
                if self._answers[device, link] and not self.dead(device, link):
                    self._arrived[device, link].append(self._answers[device, link].popleft())

    def cycles(self) -> int:
        return self._now


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "dying", [{}, {(0, 0): 3}, {(0, 0): 1, (0, 2): 5, (0, 4): 2, (1, 3): 0, (1, 5): 9}]
)
def test_every_byte_arrives_as_long_as_a_link_lives(
    seed: int, dying: dict[tuple[int, int], int]
) -> None:
    ports = SlowLinks(seed, dict(dying))
    network = DmaNetwork(ports)
    numbers = np.random.default_rng(seed)
    checks = []
    for number in range(2):
        device = DeviceNode(network, number, page_bytes=4096)
        for placement in (*Placement, Placement.BW_AWARE):
            size = int(numbers.integers(10_000, 40_000))
            values = numbers.integers(0, 256, size, np.uint8)
            there, back = device.cuda_malloc(size), device.cuda_malloc(size)
            remote = device.cuda_malloc_remote(size, placement=placement)
            stream = device.stream()
            device.write(there, values)
            device.cuda_memcpy_async(remote, there, size, OUT, stream)
            device.cuda_memcpy_async(back, remote, size, BACK, stream)
            checks.append((device, stream, back, values))
    for device, stream, back, values in checks:
        stream.synchronize()
        assert device.read(back, len(values)).tobytes() == values.tobytes()
    assert sum(count > 0 for count in ports.packets.values()) >= 12 - len(dying)
    assert ports.most_under_way > 1


@pytest.mark.parametrize(("placement", "packets"), [(Placement.LOCAL, 2), (Placement.BW_AWARE, 0)])
def test_a_side_without_links_is_told(placement: Placement, packets: int) -> None:
    """When all that goes over the other side has been moved."""
    network = DmaNetwork(SlowLinks(0, {(0, link): packets for link in range(SIDE_LINKS)}))
    device = DeviceNode(network, 0, page_bytes=4096)
    there = device.cuda_malloc(60_000)
    remote = device.cuda_malloc_remote(60_000, placement=placement)
    device.cuda_memcpy_async(remote, there, 60_000, OUT)
    with pytest.raises(RemoteMemoryError, match="reaches its left memory-node no more"):
        device.synchronize()
    assert not any(link.load for link in network._links[0])


def test_an_answer_to_nothing_is_told() -> None:
    class Chatty(SlowLinks):
        def received(self, device: int, link: int) -> Iterator[tuple[int, Flit]]:
            if self._now == 64 and (device, link) == (1, 2):
                packet = Packet(2, 1, Operation.WRITE_DONE, 0, 77, 1, 0)
                yield from ((2, flit) for flit in packet.flits())
            yield from super().received(device, link)

    network = DmaNetwork(Chatty(0, {}))
    with pytest.raises(RemoteMemoryError, match="memory-node 1 answered device 1"):
        network.advance(1000)


def test_a_packet_is_what_the_golden_model_says() -> None:
    from golden.memory_node.packet import Packet as GoldenPacket

    data = bytes(range(256)) * 2
    ours = Packet(3, 2, Operation.WRITE, 0, 0xABCD, 8, 0x123456789AC0, data)
    theirs = GoldenPacket.of([flit.payload for flit in ours.flits()])
    assert tuple(getattr(theirs, name) for name in ours._fields) == ours
    assert Packet.of(theirs.payloads) == ours
    assert [flit.tail for flit in ours.flits()] == [False] * 8 + [True]
    assert all(len(flit.payload) == LINE_BYTES for flit in ours.flits())
