"""Entry of packets from a link."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.flit import CHANNELS, FlitStream, Head
from hw.memory_node.ring.packet_arbiter import PacketArbiter

__all__ = ["LinkEntry"]

_QUIET_CYCLES = 8


class LinkEntry(wiring.Component):
    """Tells packets for this node from those that pass through.

    Flits without a packet are dropped. A packet left unfinished by a dead link is ended with an
    empty flit, so that nothing waits for the rest.

    Parameters
    ----------
    through
        Let packets for other nodes pass; otherwise all packets are for this node.

    Members
    -------
    node : In(8)
    dead : In(1)
        The link is dead.
    receive : In(FlitStream), one for each virtual channel
        Flits from the link.
    requests, responses : Out(FlitStream)
        Packets for this node, by class.
    passing : Out(FlitStream), one for each virtual channel
        Packets for other nodes.
    passed : Out(CHANNELS)
        Pulse: a packet has passed.
    """

    def __init__(self, *, through: bool) -> None:
        self._through = through
        super().__init__(
            {
                "node": In(8),
                "dead": In(1),
                "receive": In(FlitStream).array(CHANNELS),
                "requests": Out(FlitStream),
                "responses": Out(FlitStream),
                "passing": Out(FlitStream).array(CHANNELS),
                "passed": Out(CHANNELS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.requests = requests = PacketArbiter(2)
        m.submodules.responses = responses = PacketArbiter(2)
        wiring.connect(m, requests.o, wiring.flipped(self.requests))
        wiring.connect(m, responses.o, wiring.flipped(self.responses))
        own = [*requests.i, *responses.i]
        for channel in range(CHANNELS):
            self._channel(m, channel, own[channel])
        return m

    def _channel(self, m: Any, channel: int, own: Any) -> None:
        i, passing = self.receive[channel], self.passing[channel]
        head: Any = data.View(Head, i.payload.payload)
        inside, passes_on, passes, ended = (
            Signal(name=f"{name}_{channel}") for name in ("inside", "passes_on", "passes", "ended")
        )
        quiet = Signal(range(_QUIET_CYCLES), name=f"quiet_{channel}")
        flit = Signal.like(i.payload, name=f"flit_{channel}")
        valid, ready = Signal(name=f"valid_{channel}"), Signal(name=f"ready_{channel}")
        starts = ~inside & i.payload.head
        m.d.comb += [
            passes.eq(Mux(inside, passes_on, self._through & (head.destination != self.node))),
            valid.eq(Mux(ended, 1, i.valid & (inside | starts))),
            flit.eq(i.payload),
            i.ready.eq(~ended & (ready | ~(inside | starts))),
            ready.eq(Mux(passes, passing.ready, own.ready)),
            passing.payload.eq(flit),
            passing.valid.eq(valid & passes),
            own.payload.eq(flit),
            own.valid.eq(valid & ~passes),
            self.passed[channel].eq(passing.valid & passing.ready & flit.tail),
        ]
        with m.If(ended):
            m.d.comb += [flit.eq(0), flit.tail.eq(1)]
        with m.If(valid & ready):
            m.d.sync += [inside.eq(~flit.tail), passes_on.eq(passes), ended.eq(0)]
        # Flits that the link received before it died may still be on their way here.
        with m.If(~self.dead | i.valid):
            m.d.sync += quiet.eq(0)
        with m.Elif(quiet != _QUIET_CYCLES - 1):
            m.d.sync += quiet.eq(quiet + 1)
        with m.Elif(inside & ~ended):
            m.d.sync += ended.eq(1)
