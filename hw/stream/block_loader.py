"""Loads the blocks of several tensors round-robin into their FIFOs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.line import AXI_BURST_LINES, LINE_BITS, line_width
from hw.stream.bursts import BurstGenerator, BurstLayout
from hw.stream.rounds import RoundsLayout, RoundWalker

__all__ = ["BlockLoader", "ReadBeatLayout", "max_bursts"]


def max_bursts(*, layout: RoundsLayout, tensors: int, buffer_blocks: int) -> int:
    """Most bursts that ``buffer_blocks`` rounds of ``tensors`` tensors are cut into."""
    # A block of n pages whose address is no multiple of 4 KB touches n + 1 pages.
    return buffer_blocks * tensors * (-(-layout.block_beats // AXI_BURST_LINES) + 1)


class ReadBeatLayout(data.StructLayout):
    """What the loader looks at in a beat of the AXI4 R channel."""

    def __init__(self) -> None:
        super().__init__({"data": LINE_BITS, "resp": 2, "last": 1})


class BlockLoader(wiring.Component):
    """Issues the reads of one round after the other and distributes the data (paper 3.3).

    The bursts of a round are issued back to back as soon as the FIFOs have room for all of the
    round; room is accounted for by credits of one round, so the data can always be taken. All
    bursts have one AXI ID, so that the data comes in their order.

    Parameters
    ----------
    layout
        Of ``rounds``.
    tensors
        Most tensors of a round.
    buffer_blocks
        Blocks that each FIFO holds: rounds that may be in flight or in the FIFOs.
    addr_width
        Width of byte addresses in bits.

    Members
    -------
    start : In(1)
        Begins a run; the FIFOs must be empty and the loader ``idle``.
    rounds : In(:class:`~hw.stream.rounds.RoundsLayout`)
        The rounds of the run; must hold still until it is done.
    last_tensor : In(range(tensors))
        Index of the last tensor of each round; likewise.
    lines : In(line), one for each tensor
        Number of the first line of each tensor, taken over at ``start``.
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
    stop : In(1)
        Issue no further burst of this run; must stay high until the next ``start``.
    idle : Out(1)
        Nothing in flight and nothing to issue (because all is or because of ``stop``).
    error : Out(1)
        Pulse: a beat came with an error response.
    """

    def __init__(
        self, *, layout: RoundsLayout, tensors: int, buffer_blocks: int, addr_width: int
    ) -> None:
        if not isinstance(buffer_blocks, int) or buffer_blocks < 1:
            raise ValueError(f"buffer_blocks must be an integer from 1, got {buffer_blocks!r}")
        self._layout = layout
        self._tensors = tensors
        self._buffer_blocks = buffer_blocks
        self._addr_width = addr_width
        super().__init__(
            {
                "start": In(1),
                "rounds": In(layout),
                "last_tensor": In(range(tensors), init=tensors - 1),
                "lines": In(line_width(addr_width)).array(tensors),
                "ar": Out(stream.Signature(BurstLayout(addr_width=addr_width))),
                "r": In(stream.Signature(ReadBeatLayout())),
                "o": Out(stream.Signature(LINE_BITS)).array(tensors),
                "freed": In(1),
                "loaded": Out(1),
                "stop": In(1),
                "idle": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.bursts = bursts = BurstGenerator(
            layout=self._layout, tensors=self._tensors, addr_width=self._addr_width
        )
        m.submodules.arrival = arrival = RoundWalker(layout=self._layout, tensors=self._tensors)

        free_rounds = Signal(range(self._buffer_blocks + 1))
        in_flight = Signal(
            range(
                1
                + max_bursts(
                    layout=self._layout, tensors=self._tensors, buffer_blocks=self._buffer_blocks
                )
            )
        )
        wiring.connect(m, wiring.flipped(self.ar), bursts.o)
        m.d.comb += [
            bursts.start.eq(self.start),
            bursts.rounds.eq(self.rounds),
            bursts.last_tensor.eq(self.last_tensor),
            bursts.allowed.eq(free_rounds != 0),
            bursts.stop.eq(self.stop),
            self.idle.eq(bursts.idle & (in_flight == 0)),
        ]
        m.d.comb += [inner.eq(outer) for inner, outer in zip(bursts.lines, self.lines, strict=True)]
        with m.If(self.start):
            m.d.sync += free_rounds.eq(self._buffer_blocks)
        with m.Elif(bursts.begun & ~self.freed):
            m.d.sync += free_rounds.eq(free_rounds - 1)
        with m.Elif(self.freed & ~bursts.begun):
            m.d.sync += free_rounds.eq(free_rounds + 1)

        taken = self.r.valid & self.r.ready
        burst_done = taken & self.r.payload.last
        with m.If(bursts.offered & ~burst_done):
            m.d.sync += in_flight.eq(in_flight + 1)
        with m.Elif(burst_done & ~bursts.offered):
            m.d.sync += in_flight.eq(in_flight - 1)

        m.d.comb += [
            arrival.start.eq(self.start),
            arrival.rounds.eq(self.rounds),
            arrival.last_tensor.eq(self.last_tensor),
            arrival.step.eq(taken),
            arrival.step_beats.eq(1),
            self.loaded.eq(taken & arrival.round_end),
            self.error.eq(taken & self.r.payload.resp[1]),
        ]
        for index, o in enumerate(self.o):
            selected = arrival.tensor == index
            m.d.comb += [o.payload.eq(self.r.payload.data), o.valid.eq(self.r.valid & selected)]
            with m.If(selected):
                m.d.comb += self.r.ready.eq(o.ready)
        return m
