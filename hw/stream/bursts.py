"""Generator that cuts the blocks of a run into AXI bursts."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.expose import expose
from hw.logic.held import lost_bit
from hw.logic.line import AXI_BURST_BITS, AXI_BURST_LINES, line_width
from hw.stream.rounds import RoundsLayout, RoundWalker, share_members

__all__ = ["BurstGenerator"]


class BurstGenerator(wiring.Component):
    """Bursts of each round in order, one a cycle, none across a 4 KB or a block boundary.

    Parameters
    ----------
    layout
        Layout of ``rounds``.
    tensors
        Maximum number of tensors in a round.
    addr_width
        Width of byte addresses in bits.
    uneven
        Give each tensor its own number of beats.

    Members
    -------
    load : In(1)
        Takes over ``lines`` and ``rounds``; only when ``idle``.
    start : In(1)
        With ``load``: the bursts begin.
    rounds : In(:class:`~hw.stream.rounds.RoundsLayout`)
        The rounds of the run; must hold still until the generator is ``idle``.
    last_tensor : In(range(tensors))
        Index of the last tensor of each round; likewise.
    present, full, tail
        If ``uneven``, instead of ``last_tensor``: those of
        :class:`~hw.stream.rounds.RoundWalker`; likewise.
    lines : In(line), one for each tensor
        Number of the first line of each tensor.
    allowed : In(1)
        The next round may begin.
    stop : In(1)
        Offer no further burst; once high, it must stay so until the next ``start``.
    o : Out(stream of ``line`` and ``len``)
        Bursts: the number of the first line, and the beats less one, as in ``AxLEN``; one that was
        once offered is not withdrawn.
    offered : Out(1)
        A burst will be at ``o`` from the next cycle.
    begun : Out(1)
        With ``offered``: it is the first of a round.
    idle : Out(1)
        No burst is at ``o`` and none is to come.
    upset : Out(1)
        Pulse: a bit of the burst at ``o``, of the tensors' next addresses or of the walk was lost
        while it held still (see :func:`~hw.logic.held.lost_bit`).
    """

    def __init__(
        self, *, layout: RoundsLayout, tensors: int, addr_width: int, uneven: bool = False
    ) -> None:
        self._layout = layout
        self._walk: Any = {"layout": layout, "tensors": tensors, "uneven": uneven}
        self._shares = share_members(**self._walk)
        self._burst = data.StructLayout({"line": line_width(addr_width), "len": AXI_BURST_BITS})
        super().__init__(
            {
                "load": In(1),
                "start": In(1),
                "rounds": In(layout),
                **self._shares,
                "lines": In(line_width(addr_width)).array(tensors),
                "allowed": In(1),
                "stop": In(1),
                "o": Out(stream.Signature(self._burst)),
                "offered": Out(1),
                "begun": Out(1),
                "idle": Out(1),
                "upset": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.walker = walker = RoundWalker(**self._walk)
        lines = Array(
            Signal.like(line, name=f"line_{index}", reset_less=True)
            for index, line in enumerate(self.lines)
        )
        line = Signal.like(lines[0])
        beats = Signal(range(AXI_BURST_LINES + 1))
        # A burst ends with the block or at the end of its 4 KB page.
        place, page = line[:AXI_BURST_BITS], line[AXI_BURST_BITS:]
        end = Signal(range(AXI_BURST_LINES + self._layout.block_beats))
        next_page = end[AXI_BURST_BITS:].any()
        start_of_next = Cat(Const(0, AXI_BURST_BITS), page + 1)
        burst = Signal(self._burst, reset_less=True)
        valid = Signal()
        expose(m, self, walker, ("load", "start", "rounds", *self._shares))
        m.d.comb += [
            line.eq(lines[walker.tensor]),
            end.eq(place + walker.left),
            beats.eq(Mux(next_page, AXI_BURST_LINES - place, walker.left)),
            walker.step_beats.eq(beats),
            walker.step.eq(self.offered),
            self.offered.eq(
                walker.active
                & (~walker.fresh | self.allowed)
                & ~(self.stop | self.load)
                & (~valid | self.o.ready)
            ),
            self.begun.eq(self.offered & walker.fresh),
            self.o.valid.eq(valid),
            self.o.payload.eq(burst),
            self.idle.eq(~valid & (~walker.active | self.stop)),
        ]
        held = lost_bit(m, "bursts", [burst, *lines], self.offered, self.load)
        m.d.comb += self.upset.eq(walker.upset | held)
        with m.If(self.offered):
            m.d.sync += [
                burst.line.eq(line),
                burst.len.eq(Mux(next_page, ~place, walker.left - 1)),
                lines[walker.tensor].eq(
                    Mux(next_page, start_of_next, Cat(end[:AXI_BURST_BITS], page))
                ),
                valid.eq(1),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += valid.eq(0)
        with m.If(self.load):
            m.d.sync += [kept.eq(line) for kept, line in zip(lines, self.lines, strict=True)]
        return m
