"""Stops of a ring with little room between them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.flit import CHANNELS, Flit, FlitStream
from hw.memory_node.ring.stop import RingStop
from hw.stream.fifo import StreamFifo

__all__ = ["RingOfStops"]


class RingOfStops(wiring.Component):
    """Side 1 of each stop is linked to side 0 of the next; stop k has the number k.

    ``date_line`` has a bit for each stop, ``answers`` and ``responses`` are those of the stops.
    """

    def __init__(self, stops: int) -> None:
        self._stops = stops
        super().__init__(
            {
                "date_line": In(stops),
                "answers": In(FlitStream).array(stops, 2),
                "responses": Out(FlitStream).array(stops, 2),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        stops: list[Any] = [RingStop() for _ in range(self._stops)]
        for number, stop in enumerate(stops):
            m.submodules[f"stop_{number}"] = stop
            m.d.comb += [stop.node.eq(number), stop.date_line.eq(self.date_line[number])]
            for side in range(2):
                wiring.connect(m, wiring.flipped(self.answers[number][side]), stop.answers[side])
                wiring.connect(
                    m, stop.responses[side], wiring.flipped(self.responses[number][side])
                )
            following = stops[(number + 1) % self._stops]
            for channel in range(CHANNELS):
                for one, other, way in (
                    (stop.transmit[1], following.receive[0], "on"),
                    (following.transmit[0], stop.receive[1], "back"),
                ):
                    fifo = StreamFifo(shape=Flit, depth=2, early=True)
                    m.submodules[f"link_{number}_{way}_{channel}"] = fifo
                    wiring.connect(m, one[channel], fifo.i)
                    wiring.connect(m, fifo.o, other[channel])
        return m
