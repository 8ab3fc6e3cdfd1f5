"""A network of golden memory-nodes: what transfers do, without time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golden.memory_node.node import MemoryNode, flits_of, packet_of
from golden.memory_node.packet import Operation, Packet, Status

from ...errors import RemoteMemoryError
from ..network import LINE_BYTES, Piece, Side

__all__ = ["GoldenNetwork"]

PACKET_BYTES = 4096
"""The paper's message (Figure 9)."""


class GoldenNetwork:
    """A :class:`~sw_driver.memory_node.network.NodeNetwork` of ``devices`` device-nodes and as many
    memory-nodes, in a ring: memory-node n is between device n and the next.

    A transfer is cut into packets of at most 4 KB, which take the links of its side in turn and go
    to the golden model of the node; it is over when it has been started.

    Parameters
    ----------
    devices
        At least 2.
    links
        Of a node; half of them are on each side.
    local_bytes, share_bytes
        Memory of a device, and of each of the two groups of a memory-node.
    """

    timed = False

    def __init__(
        self, *, devices: int = 2, links: int = 6, local_bytes: int, share_bytes: int
    ) -> None:
        if devices < 2 or devices > 128 or links < 2 or links % 2:
            raise ValueError(
                f"devices must be from 2 to 128 and links even, got {devices} and {links}"
            )
        self.local_bytes = local_bytes
        self.share_bytes = share_bytes
        self._links = links
        self._memories = [np.zeros(local_bytes, np.uint8) for _ in range(devices)]
        self._nodes = [
            MemoryNode(node=2 * number + 1, links=links, groups=2, group_bytes=share_bytes)
            for number in range(devices)
        ]
        for number, node in enumerate(self._nodes):
            for group, device in zip(node.groups, (number, (number + 1) % devices), strict=True):
                group.size, group.owner = share_bytes, 2 * device
        self._refused: dict[int, str] = {}
        self._tickets = 0

    def local(self, device: int) -> NDArray[np.uint8]:
        """As of the protocol."""
        return self._memories[device]

    def start(self, device: int, piece: Piece) -> int:
        """As of the protocol."""
        self._tickets += 1
        number = device if piece.side is Side.RIGHT else device - 1
        first_link = 0 if piece.side is Side.RIGHT else self._links // 2
        memory = self._memories[device]
        for count, offset in enumerate(range(0, piece.nbytes, PACKET_BYTES)):
            size = min(PACKET_BYTES, piece.nbytes - offset)
            place = slice(piece.local + offset, piece.local + offset + size)
            request = Packet(
                destination=2 * (number % len(self._nodes)) + 1,
                source=2 * device,
                operation=Operation.WRITE if piece.write else Operation.READ,
                tag=count % (1 << 16),
                lines=size // LINE_BYTES,
                address=piece.remote + offset,
                data=memory[place].tobytes() if piece.write else b"",
            )
            link = first_link + count % (self._links // 2)
            sent = self._nodes[number].take(link, 0, flits_of(request))
            assert sent is not None
            answer = packet_of(sent.flits)
            if answer.status != Status.OK:
                self._refused[self._tickets] = (
                    f"memory-node {request.destination} refused {size} bytes at "
                    f"{request.address:#x} of device {device}: {Status(answer.status).name}"
                )
                break
            if not piece.write:
                memory[place] = np.frombuffer(answer.data, np.uint8)
        return self._tickets

    def finished(self, ticket: int) -> bool:
        """As of the protocol."""
        refused = self._refused.pop(ticket, None)
        if refused:
            raise RemoteMemoryError(refused)
        return True

    def advance(self, cycles: int) -> None:
        """As of the protocol."""

    def cycles(self) -> int:
        """As of the protocol."""
        return 0
