"""Arbiter that merges several streams of packets."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.in_turn import round_robin
from hw.memory_node.flit import Flit, FlitStream

__all__ = ["PacketArbiter"]


class PacketArbiter(wiring.Component):
    """Packets in turn, whole ones; a flit a cycle.

    Members
    -------
    i : In(FlitStream), one for each input
        Whole packets.
    o : Out(FlitStream)
    """

    def __init__(self, inputs: int) -> None:
        super().__init__({"i": In(FlitStream).array(inputs), "o": Out(FlitStream)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        valid = Cat(packets.valid for packets in self.i)
        inside = Signal()
        owner = Signal(range(len(self.i)))
        source = Signal.like(owner)
        # Once a flit has been offered, no other input may come in between.
        starts = valid.any() & ~inside
        turn = round_robin(m, valid, advance=starts)
        ends = self.o.valid & self.o.ready & self.o.payload.tail
        m.d.comb += [
            source.eq(Mux(inside, owner, turn)),
            self.o.valid.eq(valid.bit_select(source, 1)),
            self.o.payload.eq(
                data.View(Flit, Array(Cat(packets.payload) for packets in self.i)[source])
            ),
        ]
        for number, packets in enumerate(self.i):
            m.d.comb += packets.ready.eq(self.o.ready & (source == number))
        with m.If(starts):
            m.d.sync += [owner.eq(turn), inside.eq(~ends)]
        with m.Elif(ends):
            m.d.sync += inside.eq(0)
        return m
