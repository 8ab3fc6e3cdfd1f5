"""Requests at random, right and wrong ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cocotb.triggers import ClockCycles

from golden.memory_node.node import PacketFlit, flits_of, packets_in
from golden.memory_node.packet import LINE_BYTES, Operation, Packet
from hw.memory_node.flit import Flit
from hw_tests.streams import StreamSink, pack, unpack

__all__ = [
    "Flits",
    "Requester",
    "a_packet",
    "check_mixed",
    "from_port",
    "lines_of",
    "quiet",
    "taken",
    "to_port",
]


Flits = tuple[PacketFlit, ...]


def to_port(flit: PacketFlit) -> int:
    """A flit as the payload of a ``FlitStream``."""
    payload = int.from_bytes(flit.payload, "little")
    return pack(Flit, head=flit.head, tail=flit.tail, payload=payload)


def from_port(payload: int) -> PacketFlit:
    """The flit that a ``FlitStream`` carries."""
    fields = unpack(Flit, payload)
    line = fields["payload"].to_bytes(LINE_BYTES, "little")
    return PacketFlit(bool(fields["head"]), bool(fields["tail"]), line)


def lines_of(rng: random.Random, lines: int) -> bytes:
    """So many lines of anything."""
    return rng.randbytes(LINE_BYTES * lines)


@dataclass
class Requester:
    """What a device asks on one link.

    ``first`` and ``end`` are the lines of the allocation that are this link's; ``size`` is that of
    the allocation in bytes, beyond which requests are refused.
    """

    rng: random.Random
    node: int
    owner: int
    first: int
    end: int
    size: int
    _tag: int = 0
    _spoils: list[str] = field(default_factory=list)

    def _packet(self, operation: int, line: int, lines: int) -> Packet:
        self._tag = (self._tag + 1) % (1 << 16)
        return Packet(
            destination=self.node,
            source=self.owner,
            operation=operation,
            tag=self._tag,
            lines=lines,
            address=LINE_BYTES * line,
            data=lines_of(self.rng, lines) if operation == Operation.WRITE else b"",
        )

    def right(self) -> tuple[PacketFlit, ...]:
        """A read or a write of lines that are this link's."""
        rng = self.rng
        room = min(64, self.end - self.first)
        lines = min(room, rng.choice((1, 1, 2, 7, 8, 9, 63, 64, rng.randint(1, 64))))
        line = rng.choice((self.first, self.end - lines, rng.randint(self.first, self.end - lines)))
        return flits_of(self._packet(rng.choice((Operation.READ, Operation.WRITE)), line, lines))

    def wrong(self) -> tuple[PacketFlit, ...]:
        """A request that is to be refused, in one way or in several."""
        rng = self.rng
        flits = self.right()
        for _ in range(rng.choice((1, 1, 2))):
            flits = self._spoilt(flits)
        return flits

    def _spoilt(self, flits: tuple[PacketFlit, ...]) -> tuple[PacketFlit, ...]:
        rng = self.rng
        fields = {
            "destination": (0, 1),
            "source": (1, 1),
            "operation": (2, 1),
            "lines": (6, 2),
            "address": (8, 6),
        }
        lines = int.from_bytes(flits[0].payload[6:8], "little")
        if not self._spoils:
            self._spoils = [*fields, "beyond", "beyond", "count", "count", "head", "long"]
            rng.shuffle(self._spoils)
        spoil = self._spoils.pop()
        if spoil == "long":
            # A line too many, and all of it there.
            operation = rng.choice((Operation.READ, Operation.WRITE))
            return flits_of(self._packet(operation, self.first, 65))
        if spoil == "count":
            # More than a buffer takes, one more, or fewer than were promised.
            wanted = rng.choice((0, 1, lines - 1, lines + 1, 65, 130))
            head, *data = flits
            data = [*data[:wanted], *self._any_lines(max(0, wanted - len(data)))]
            last = len(data)
            return tuple(
                PacketFlit(each.head, index == last, each.payload)
                for index, each in enumerate((head, *data))
            )
        if spoil == "head":
            at = rng.randrange(len(flits))
            return tuple(
                PacketFlit(each.head or index == at, each.tail, each.payload)
                for index, each in enumerate(flits)
            )
        value = {
            "destination": self.node ^ rng.randint(1, 255),
            "source": self.owner ^ rng.randint(1, 255),
            "operation": rng.choice((0, *range(3, 9), 255)),
            "lines": rng.choice((0, 65, 128, 1 << 15, 65535)),
            "address": self.first * LINE_BYTES + rng.choice((1, 32, 63)),
            # Just beyond, far beyond, and where a sum of too few bits would begin anew.
            "beyond": rng.choice(
                (
                    self.size - LINE_BYTES * lines + LINE_BYTES,
                    self.size,
                    rng.randrange(self.size, 1 << 48, LINE_BYTES),
                    (1 << 48) - LINE_BYTES * max(1, lines),
                    (1 << 48) - LINE_BYTES,
                )
            ),
        }[spoil]
        at, size = fields["address" if spoil == "beyond" else spoil]
        old = flits[0].payload
        new = old[:at] + (value % (1 << 8 * size)).to_bytes(size, "little") + old[at + size :]
        return (PacketFlit(True, flits[0].tail, new), *flits[1:])

    def _any_lines(self, count: int) -> Iterator[PacketFlit]:
        for _ in range(count):
            yield PacketFlit(False, False, lines_of(self.rng, 1))

    def strays(self) -> Sequence[PacketFlit]:
        """Flits of no packet."""
        return [
            PacketFlit(False, self.rng.random() < 0.5, lines_of(self.rng, 1))
            for _ in range(self.rng.randrange(3))
        ]


def a_packet(rng: random.Random, destination: int, source: int = 0, tag: int = 0) -> Flits:
    lines = rng.choice((0, 0, 1, 2, rng.randint(1, 8)))
    return flits_of(
        Packet(
            destination=destination,
            source=source,
            operation=rng.randint(1, 6),
            tag=tag,
            lines=lines,
            address=64 * rng.getrandbits(40),
            data=lines_of(rng, lines),
        )
    )


def taken(sink: StreamSink) -> list[Flits]:
    """The packets that came; nothing may come between them."""
    flits = [from_port(each) for each in sink.taken]
    packets = list(packets_in(flits))
    assert sum(map(len, packets)) == len(flits), "flits of no packet, or the last has no tail"
    return packets


def check_mixed(found: list[Flits], sources: Iterable[list[Flits]]) -> None:
    """``found`` has the packets of each source, whole and in its order."""
    left = [list(reversed(each)) for each in sources]
    for index, packet in enumerate(found):
        source = next((each for each in left if each and each[-1] == packet), None)
        assert source is not None, f"packet {index} was not next of any source: {packet[0]}"
        source.pop()
    assert not any(left), f"{sum(map(len, left))} packets did not come"


async def quiet(dut: Any, sinks: Iterable[StreamSink], *, cycles: int = 400) -> None:
    """Waits until nothing has come for so long."""
    sinks = list(sinks)
    before = -1
    while before != (before := sum(len(each.taken) for each in sinks)):
        await ClockCycles(dut.clk, cycles)
