"""Detour that takes answers to another link when theirs has died."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.flit import FlitStream
from hw.memory_node.ring.packet_arbiter import PacketArbiter

__all__ = ["Detour"]


class Detour(wiring.Component):
    """Answers of a group to its links.

    Members
    -------
    dead : In(links)
        Links that are dead.
    i, o : In(FlitStream), Out(FlitStream), one for each link
        A packet whose link is dead when it begins leaves on the next in number that is not.
    """

    def __init__(self, links: int) -> None:
        self._links = links
        super().__init__(
            {
                "dead": In(links),
                "i": In(FlitStream).array(links),
                "o": Out(FlitStream).array(links),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        links = self._links
        if links == 1:
            wiring.connect(m, wiring.flipped(self.i[0]), wiring.flipped(self.o[0]))
            return m
        arbiters: list[Any] = [PacketArbiter(links) for _ in range(links)]
        for number, arbiter in enumerate(arbiters):
            m.submodules[f"link_{number}"] = arbiter
            wiring.connect(m, arbiter.o, wiring.flipped(self.o[number]))
        for number, i in enumerate(self.i):
            best, kept, target = (
                Signal(range(links), name=f"{name}_{number}") for name in ("best", "kept", "target")
            )
            offered = Signal(name=f"offered_{number}")
            m.d.comb += [best.eq(number), target.eq(Mux(offered, kept, best))]
            for distance in range(links - 1, -1, -1):
                other = (number + distance) % links
                with m.If(~self.dead[other]):
                    m.d.comb += best.eq(other)
            with m.If(i.valid):
                m.d.sync += [kept.eq(target), offered.eq(~(i.ready & i.payload.tail))]
            for other, arbiter in enumerate(arbiters):
                source = arbiter.i[number]
                m.d.comb += [
                    source.payload.eq(i.payload),
                    source.valid.eq(i.valid & (target == other)),
                ]
                with m.If(target == other):
                    m.d.comb += i.ready.eq(source.ready)
        return m
