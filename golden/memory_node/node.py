"""Packet handling of a memory-node (docs/memory-node-spec.md, "Packets" and "The node")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from golden.memory_node.packet import LINE_BYTES, Operation, Packet, Status

__all__ = [
    "Group",
    "MemoryNode",
    "PacketFlit",
    "Sent",
    "channel_of",
    "flits_of",
    "packet_of",
    "packets_in",
]

_MOST_LINES = 64
_REQUEST_CHANNELS = (0, 1)
_RESPONSES = 2


class PacketFlit(NamedTuple):
    """Flit on one virtual channel."""

    head: bool
    tail: bool
    payload: bytes


class Sent(NamedTuple):
    """Packet that leaves a node."""

    link: int
    channel: int
    flits: tuple[PacketFlit, ...]


def flits_of(packet: Packet) -> tuple[PacketFlit, ...]:
    """Return the flits of a packet on a virtual channel."""
    payloads = packet.payloads
    last = len(payloads) - 1
    return tuple(
        PacketFlit(index == 0, index == last, payload) for index, payload in enumerate(payloads)
    )


def packet_of(flits: Sequence[PacketFlit]) -> Packet:
    """Return the packet with the given flits."""
    return Packet.of([flit.payload for flit in flits])


def packets_in(flits: Iterable[PacketFlit]) -> Iterator[tuple[PacketFlit, ...]]:
    """Yield the packets of a virtual channel.

    A packet goes from a head to the next tail. Flits between packets belong to none.
    """
    packet: list[PacketFlit] = []
    for flit in flits:
        if packet or flit.head:
            packet.append(flit)
            if flit.tail:
                yield tuple(packet)
                packet = []


def channel_of(address: int, *, channels: int, interleave_bytes: int) -> tuple[int, int]:
    """Return the memory channel of a byte of a group's memory, and its address there."""
    stripe, offset = divmod(address, interleave_bytes)
    turn, channel = divmod(stripe, channels)
    return channel, turn * interleave_bytes + offset


@dataclass
class Group:
    """Share of the memory, and its allocation."""

    memory: bytearray
    base: int = 0
    size: int = 0
    owner: int = 0
    failing: set[int] = field(default_factory=set)
    """Addresses of lines for which memory answers with an error; they are read and written
    nevertheless."""
    counts: Counter[str] = field(default_factory=Counter)

    def answer(self, node: int, flits: Sequence[PacketFlit]) -> tuple[PacketFlit, ...]:
        """Execute the request of the packet ``flits`` and return the flits of its answer."""
        # Bytes beyond the fields of a request's head have no meaning.
        head = Packet.of([flits[0].payload[:14].ljust(LINE_BYTES, b"\0")])
        status = self._check(node, head, flits)
        lines = [self.base + head.address + LINE_BYTES * index for index in range(head.lines % 65)]
        data = b""
        operation = Operation.REFUSED
        if head.operation == Operation.READ:
            operation = Operation.READ_DATA
            if status is Status.OK:
                data = bytes(self.memory[lines[0] : lines[0] + LINE_BYTES * head.lines])
                self.counts["lines_read"] += head.lines
                if self.failing.intersection(lines):
                    data += bytes(LINE_BYTES)
                    self.counts[f"refused_{Status.MEMORY.name}"] += 1
        elif head.operation == Operation.WRITE:
            operation = Operation.WRITE_DONE
            if status is Status.OK:
                for line, flit in zip(lines, flits[1:], strict=True):
                    self.memory[line : line + LINE_BYTES] = flit.payload
                self.counts["lines_written"] += head.lines
                if self.failing.intersection(lines):
                    status = Status.MEMORY
        self.counts["requests"] += 1
        if status is not Status.OK:
            self.counts[f"refused_{status.name}"] += 1
        return flits_of(
            Packet(
                destination=head.source,
                source=node,
                operation=operation,
                status=status,
                tag=head.tag,
                lines=head.lines,
                address=head.address,
                data=data,
            )
        )

    def _check(self, node: int, head: Packet, flits: Sequence[PacketFlit]) -> Status:
        write = head.operation == Operation.WRITE
        if head.destination != node or head.operation not in (Operation.READ, Operation.WRITE):
            return Status.OPERATION
        if head.source != self.owner:
            return Status.OWNER
        wrong = (
            not 1 <= head.lines <= _MOST_LINES
            or head.address % LINE_BYTES
            or len(flits) - 1 != (head.lines if write else 0)
            or any(flit.head for flit in flits[1:])
        )
        if wrong:
            return Status.FORMAT
        end = head.address + LINE_BYTES * head.lines
        if end > self.size or self.base + self.size > len(self.memory):
            return Status.BOUNDS
        return Status.OK


class MemoryNode:
    """Node with all its links and groups; it handles packets one after the other.

    Examples
    --------
    >>> from golden.memory_node.packet import Operation, Packet, Status
    >>> node = MemoryNode(node=0, links=2, groups=1, group_bytes=4096)
    >>> request = Packet(destination=0, source=1, operation=Operation.READ, lines=1)
    >>> answer = packet_of(node.take(0, 0, flits_of(request)).flits)
    >>> Operation(answer.operation).name, Status(answer.status).name  # no memory is device 1's
    ('READ_DATA', 'OWNER')
    """

    def __init__(
        self, *, node: int, links: int, groups: int, group_bytes: int, date_line: bool = False
    ) -> None:
        self.node = node
        self.date_line = date_line
        self.groups = [Group(bytearray(group_bytes)) for _ in range(groups)]
        self.dead: set[int] = set()
        """Links on which nothing leaves any more."""
        self.counts: Counter[tuple[str, int]] = Counter()
        """Counts of the groups, and of packets that passed or were dropped, by name and the link
        on which they came."""
        self._group_links = links // groups

    def take(self, link: int, channel: int, flits: tuple[PacketFlit, ...]) -> Sent | None:
        """Return the packet that leaves the node in response to a packet, or None."""
        group, number = divmod(link, self._group_links)
        if len(self.groups) == 2 and flits[0].payload[0] != self.node:
            self.counts["passed", link] += 1
            other = (1 - group) * self._group_links + number
            return Sent(other, channel | self.date_line, flits)
        if channel not in _REQUEST_CHANNELS:
            self.counts["dropped", link] += 1
            return None
        used = self.groups[group]
        used.counts = Counter()
        answer = used.answer(self.node, flits)
        for name, count in used.counts.items():
            self.counts[name, link] += count
        first, size = group * self._group_links, self._group_links
        ways = [first + (number + offset) % size for offset in range(size)]
        way = next((candidate for candidate in ways if candidate not in self.dead), link)
        return Sent(way, _RESPONSES, answer)
