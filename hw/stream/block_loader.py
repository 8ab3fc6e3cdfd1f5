"""Loader of the blocks of several tensors, round-robin, into their FIFOs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from hw.logic.counter import step
from hw.logic.line import LINE_BITS
from hw.stream.block_mover import BlockMover

__all__ = ["BlockLoader"]


class BlockLoader(BlockMover):
    """Issues the reads of one round after the other and distributes the data (paper 3.3).

    The bursts of a round are issued back to back as soon as the FIFOs have room for the whole
    round. A credit stands for the room of one round, so the data can always be taken. All bursts
    have the same AXI ID, so their data arrives in order.

    Parameters and the other members are those of :class:`~hw.stream.block_mover.BlockMover`.

    Members
    -------
    o : Out(stream of lines), one for each tensor
        Lines to the FIFOs; the room in them being known, ``ready`` is not looked at.
    freed : In(1)
        Pulse: the FIFOs have lost their oldest round, or lose a beat of it in each cycle from the
        next on.
    loaded : Out(1)
        Pulse: the last beat of a round goes into its FIFO.
    out_of_order : Out(1)
        Pulse: data came that is not part of the run, or a block ends within a burst.

    Examples
    --------
    >>> from hw.stream.rounds import RoundsLayout
    >>> layout = RoundsLayout(block_beats=64, beats_width=20)
    >>> loader = BlockLoader(tensors=4, layout=layout, buffer_blocks=2, addr_width=34)
    >>> len(loader.o), loader.axi.araddr.shape()
    (4, unsigned(34))
    """

    def __init__(self, *, tensors: int, **options: Any) -> None:
        members = {
            "o": Out(stream.Signature(LINE_BITS)).array(tensors),
            "freed": In(1),
            "loaded": Out(1),
            "out_of_order": Out(1),
        }
        super().__init__(("ar", "r"), members, tensors=tensors, **options)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        free_rounds = Signal(range(self._buffer_blocks + 1))
        in_flight = Signal(range(self._most_bursts + 1))
        bursts = self._bursts(m, free_rounds != 0)
        arrival = self._walker(m, "arrival")
        step(m, free_rounds, up=self.freed, down=bursts.begun)
        with m.If(self.load):
            m.d.sync += free_rounds.eq(self._buffer_blocks)
        axi = self.axi
        step(m, in_flight, up=bursts.offered, down=axi.rvalid & axi.rlast)
        m.d.comb += [
            axi.rready.eq(1),
            self.idle.eq(bursts.idle & (in_flight == 0)),
            arrival.step.eq(axi.rvalid),
            self.loaded.eq(axi.rvalid & arrival.round_end),
            self.error.eq(axi.rvalid & axi.rresp[1]),
            self.upset.eq(bursts.upset | arrival.upset),
            self.out_of_order.eq(
                axi.rvalid & (~arrival.active | (arrival.tensor_end & ~axi.rlast))
            ),
        ]
        for index, o in enumerate(self.o):
            selected = arrival.tensor == index
            m.d.comb += [o.payload.eq(axi.rdata), o.valid.eq(axi.rvalid & selected)]
        return m
