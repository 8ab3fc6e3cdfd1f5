"""A network of golden memory-nodes: results of transfers, without time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from golden.memory_node.node import MemoryNode, PacketFlit

from ...device.clock import Clock, Domain
from ...device.errors import InvalidArgumentError
from ...numbers import check_integer
from ..dma import DmaNetwork, check_ring
from ..packets import Flit

__all__ = ["GoldenNetwork"]


class GoldenNetwork(DmaNetwork):
    """A ring of ``devices`` device-nodes and as many golden memory-nodes, without time.

    Memory-node n is between device n and the next. A transfer is over as soon as it starts.

    Parameters
    ----------
    devices
        Number of devices, 2 to 128.
    links
        Number of a node's links; half of them are on each side.
    local_bytes, share_bytes
        Bytes of a device's memory, and of each of the two groups of a memory-node.
    clock
        Clock shared with other devices, if any.

    Examples
    --------
    >>> from nearmem import DeviceNode
    >>> network = GoldenNetwork(devices=4, local_bytes=1 << 20, share_bytes=1 << 24)
    >>> DeviceNode(network, 3).remote_memory.free_bytes >> 20
    32
    >>> DeviceNode(network, 4)
    Traceback (most recent call last):
        ...
    sw_driver.device.errors.InvalidArgumentError: the number of a device-node is 4: ...
    """

    name = "golden"

    def __init__(
        self,
        *,
        devices: int = 2,
        links: int = 6,
        local_bytes: int,
        share_bytes: int,
        clock: Clock | None = None,
    ) -> None:
        check_ring(devices, local_bytes)
        check_integer("share_bytes", share_bytes)
        if check_integer("links", links, 2) % 2:
            raise InvalidArgumentError(f"links is {links}: expected an even number")
        ports = _GoldenPorts(devices, links // 2, local_bytes, share_bytes)
        super().__init__(ports, Domain(clock))


class _GoldenPorts:
    timed = False

    def __init__(self, devices: int, side_links: int, local_bytes: int, share_bytes: int) -> None:
        self.devices = devices
        self.side_links = side_links
        self.local_bytes = local_bytes
        self.share_bytes = share_bytes
        self._nodes = [
            MemoryNode(node=2 * number + 1, links=2 * side_links, groups=2, group_bytes=share_bytes)
            for number in range(devices)
        ]
        for number, node in enumerate(self._nodes):
            for group, device in zip(node.groups, (number, (number + 1) % devices), strict=True):
                group.size, group.owner = share_bytes, 2 * device
        self._answers: dict[tuple[int, int], deque[tuple[int, Flit]]] = {}

    def send(self, device: int, link: int, channel: int, flits: list[Flit]) -> None:
        # A device's right side is the left side of its node, which has the node's first links.
        right, number = divmod(link, self.side_links)
        node = self._nodes[device if right else device - 1]
        sent = node.take(
            number if right else self.side_links + number,
            channel,
            tuple(PacketFlit(*flit) for flit in flits),
        )
        assert sent is not None
        answers = self._answers.setdefault((device, link), deque())
        answers.extend((sent.channel, Flit(*flit)) for flit in sent.flits)

    def unsent(self, device: int, link: int) -> int:
        return 0

    def received(self, device: int, link: int) -> Iterator[tuple[int, Flit]]:
        answers = self._answers.get((device, link), deque())
        while answers:
            yield answers.popleft()

    def dead(self, device: int, link: int) -> bool:
        return False

    def advance(self, cycles: int) -> None:
        pass

    def cycles(self) -> int:
        return 0
