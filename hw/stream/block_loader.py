"""Loads the blocks of several tensors round-robin into their FIFOs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hw.counter import step
from hw.line import LINE_BITS
from hw.stream.block_mover import BlockMover
from hw.stream.bursts import BurstLayout

__all__ = ["BlockLoader", "ReadBeatLayout"]


class ReadBeatLayout(data.StructLayout):
    """What the loader looks at in a beat of the AXI4 R channel."""

    def __init__(self) -> None:
        super().__init__({"data": LINE_BITS, "resp": 2, "last": 1})


class BlockLoader(BlockMover):
    """Issues the reads of one round after the other and distributes the data (paper 3.3).

    The bursts of a round are issued back to back as soon as the FIFOs have room for all of the
    round; room is accounted for by credits of one round, so the data can always be taken. All
    bursts have one AXI ID, so that the data comes in their order.

    Parameters are those of :class:`~hw.stream.block_mover.BlockMover`, and so are members that are
    not here.

    Members
    -------
    ar : Out(stream of :class:`~hw.stream.bursts.BurstLayout`)
        Bursts to be read.
    r : In(stream of :class:`ReadBeatLayout`)
        Their data.
    o : Out(stream of lines), one for each tensor
        To the FIFOs.
    freed : In(1)
        Pulse: the FIFOs have lost their oldest round, or lose a beat of it in each cycle from the
        next on.
    loaded : Out(1)
        Pulse: the last beat of a round goes into its FIFO.
    """

    def __init__(self, *, tensors: int, addr_width: int, **options: Any) -> None:
        members = {
            "ar": Out(stream.Signature(BurstLayout(addr_width=addr_width))),
            "r": In(stream.Signature(ReadBeatLayout())),
            "o": Out(stream.Signature(LINE_BITS)).array(tensors),
            "freed": In(1),
            "loaded": Out(1),
        }
        super().__init__(members, tensors=tensors, addr_width=addr_width, **options)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        free_rounds = Signal(range(self._buffer_blocks + 1))
        in_flight = Signal(range(self._most_bursts + 1))
        bursts = self._bursts(m, self.ar, free_rounds != 0)
        arrival = self._walker(m, "arrival")
        step(m, free_rounds, up=self.freed, down=bursts.begun)
        with m.If(self.start):
            m.d.sync += free_rounds.eq(self._buffer_blocks)
        taken = self.r.valid & self.r.ready
        step(m, in_flight, up=bursts.offered, down=taken & self.r.payload.last)
        m.d.comb += [
            self.idle.eq(bursts.idle & (in_flight == 0)),
            arrival.step.eq(taken),
            self.loaded.eq(taken & arrival.round_end),
            self.error.eq(taken & self.r.payload.resp[1]),
        ]
        for index, o in enumerate(self.o):
            selected = arrival.tensor == index
            m.d.comb += [o.payload.eq(self.r.payload.data), o.valid.eq(self.r.valid & selected)]
            with m.If(selected):
                m.d.comb += self.r.ready.eq(o.ready)
        return m
