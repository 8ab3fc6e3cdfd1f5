"""Stop of a ring: two links, packets from one to the other, and the node's own packets."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.flit import CHANNELS, FlitStream
from hw.memory_node.ring.entry import LinkEntry
from hw.memory_node.ring.packet_arbiter import PacketArbiter

__all__ = ["ANSWER_CHANNEL", "RingStop"]

ANSWER_CHANNEL = 2
"""Virtual channel in which an answer begins."""


class RingStop(wiring.Component):
    """Packets for others go on to the next stop, by virtual channel and in order.

    Passing packets and the node's own take turns, packet by packet. Neither waits for ever, and a
    node in the middle of a busy ring gets half of the output.

    Parameters
    ----------
    sides
        Number of sides: 2, or 1 for a link outside a ring.

    Members
    -------
    node, date_line : In(8), In(1)
        May change only while nothing is under way.
    dead : In(sides)
        Links that are dead.
    receive, transmit : In(FlitStream), Out(FlitStream), for each side one a virtual channel
        Flits from and to the links.
    requests, responses : Out(FlitStream), one for each side
        Packets for this node.
    answers : In(FlitStream), one for each side
        Answers of this node.
    passed : Out(CHANNELS), one for each side
        Pulse for each virtual channel: a packet that came in on this side has passed.

    Examples
    --------
    >>> stop = RingStop()
    >>> len(stop.receive), len(stop.answers), stop.dead.shape()
    (2, 2, unsigned(2))
    """

    def __init__(self, sides: int = 2) -> None:
        self._sides = sides
        super().__init__(
            {
                "node": In(8),
                "date_line": In(1),
                "dead": In(sides),
                "receive": In(FlitStream).array(sides, CHANNELS),
                "transmit": Out(FlitStream).array(sides, CHANNELS),
                "requests": Out(FlitStream).array(sides),
                "responses": Out(FlitStream).array(sides),
                "answers": In(FlitStream).array(sides),
                "passed": Out(CHANNELS).array(sides),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        entries: list[Any] = [LinkEntry(through=self._sides == 2) for _ in range(self._sides)]
        for side, entry in enumerate(entries):
            m.submodules[f"entry_{side}"] = entry
            m.d.comb += [
                entry.node.eq(self.node),
                entry.dead.eq(self.dead[side]),
                self.passed[side].eq(entry.passed),
            ]
            wiring.connect(m, entry.requests, wiring.flipped(self.requests[side]))
            wiring.connect(m, entry.responses, wiring.flipped(self.responses[side]))
            for channel in range(CHANNELS):
                wiring.connect(
                    m, wiring.flipped(self.receive[side][channel]), entry.receive[channel]
                )
        for side in range(self._sides):
            for channel in range(CHANNELS):
                self._exit(m, side, channel, entries)
        return m

    def _exit(self, m: Any, side: int, channel: int, entries: list[Any]) -> None:
        sources: list[tuple[Any, Any]] = []
        """Streams, each with a flag that its packets leave in this channel."""
        if self._sides == 2:
            passing = entries[1 - side].passing
            if channel % 2:
                sources = [(passing[channel], 1), (passing[channel - 1], self.date_line)]
            else:
                sources = [(passing[channel], ~self.date_line)]
        if channel == ANSWER_CHANNEL:
            sources.append((self.answers[side], 1))
        transmit = self.transmit[side][channel]
        if not sources:
            m.d.comb += transmit.valid.eq(0)
            return
        m.submodules[f"exit_{side}_{channel}"] = arbiter = PacketArbiter(len(sources))
        wiring.connect(m, arbiter.o, wiring.flipped(transmit))
        for (source, leaves), target in zip(sources, arbiter.i, strict=True):
            m.d.comb += [
                target.payload.eq(source.payload),
                target.valid.eq(source.valid & leaves),
            ]
            with m.If(leaves):
                m.d.comb += source.ready.eq(target.ready)
