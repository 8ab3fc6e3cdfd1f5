"""Cuts the blocks of a job into AXI4 bursts."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.stream.rounds import RoundsLayout, RoundWalker

__all__ = [
    "BEAT_BYTES",
    "BURST_BEATS",
    "BurstGenerator",
    "BurstLayout",
    "line_width",
]

BEAT_BYTES = 64
"""Bytes of a beat: 512 data bits. A line is as long."""

BURST_BEATS = 4096 // BEAT_BYTES
"""Most beats of a burst: an AXI4 burst must not cross a 4 KB boundary (IHI 0022, A3.4.1)."""

_PAGE_BITS = BURST_BEATS.bit_length() - 1


def line_width(addr_width: int) -> int:
    """Bits of a line number (an address in units of 64 bytes) for addresses of ``addr_width``."""
    return addr_width - (BEAT_BYTES.bit_length() - 1)


class BurstLayout(data.StructLayout):
    """A burst: the number of its first line, and its beats less one, as in ``AxLEN``."""

    def __init__(self, *, addr_width: int) -> None:
        super().__init__({"line": line_width(addr_width), "len": _PAGE_BITS})


class BurstGenerator(wiring.Component):
    """Bursts of each round in order, one a cycle, none across a 4 KB or a block boundary.

    Parameters
    ----------
    layout:
        Of ``rounds``.
    tensors:
        Tensors of a round.
    addr_width:
        Width of byte addresses in bits.

    Members
    -------
    start: takes over ``lines`` and begins, In
    rounds: the job; must hold still until the generator is ``idle``, In
    lines: number of the first line of each tensor, In
    allowed: the next round may begin, In
    stop: offer no further burst; once high, it must stay so until the next ``start``, In
    o: stream of bursts, Out; a burst once offered is not withdrawn
    offered: a burst will be at ``o`` from the next cycle, Out
    begun: with ``offered``: it is the first of a round, Out
    idle: no burst is at ``o`` and none is to come, Out
    """

    def __init__(self, *, layout: RoundsLayout, tensors: int, addr_width: int) -> None:
        self._layout = layout
        self._tensors = tensors
        self._burst = BurstLayout(addr_width=addr_width)
        super().__init__(
            {
                "start": In(1),
                "rounds": In(layout),
                "lines": In(line_width(addr_width)).array(tensors),
                "allowed": In(1),
                "stop": In(1),
                "o": Out(stream.Signature(self._burst)),
                "offered": Out(1),
                "begun": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.walker = walker = RoundWalker(layout=self._layout, tensors=self._tensors)
        lines = Array(
            Signal.like(line, name=f"line_{index}", reset_less=True)
            for index, line in enumerate(self.lines)
        )
        line = Signal.like(lines[0])
        to_boundary = Signal(range(BURST_BEATS + 1))
        beats = Signal(range(BURST_BEATS + 1))
        burst = Signal(self._burst, reset_less=True)
        valid = Signal()
        m.d.comb += [
            walker.start.eq(self.start),
            walker.rounds.eq(self.rounds),
            line.eq(lines[walker.tensor]),
            to_boundary.eq(BURST_BEATS - line[:_PAGE_BITS]),
            beats.eq(Mux(walker.left < to_boundary, walker.left, to_boundary)),
            walker.step_beats.eq(beats),
            walker.step.eq(self.offered),
            self.offered.eq(
                walker.active
                & (~walker.fresh | self.allowed)
                & ~(self.stop | self.start)
                & (~valid | self.o.ready)
            ),
            self.begun.eq(self.offered & walker.fresh),
            self.o.valid.eq(valid),
            self.o.payload.eq(burst),
            self.idle.eq(~valid & (~walker.active | self.stop)),
        ]
        with m.If(self.offered):
            m.d.sync += [
                burst.line.eq(line),
                burst.len.eq(beats - 1),
                lines[walker.tensor].eq(line + beats),
                valid.eq(1),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += valid.eq(0)
        with m.If(self.start):
            m.d.sync += [kept.eq(line) for kept, line in zip(lines, self.lines, strict=True)]
        return m
