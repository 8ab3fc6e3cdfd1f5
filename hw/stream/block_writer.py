"""Stores the blocks of several tensors round-robin from their FIFOs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.line import AXI_BURST_LINES, LINE_BITS, LINE_BYTES, line_width
from hw.stream.block_loader import max_bursts
from hw.stream.bursts import BurstGenerator, BurstLayout
from hw.stream.rounds import RoundsLayout, RoundWalker

__all__ = ["BlockWriter", "WriteBeatLayout"]


class WriteBeatLayout(data.StructLayout):
    """A beat of the AXI4 W channel."""

    def __init__(self) -> None:
        super().__init__({"data": LINE_BITS, "strb": LINE_BYTES, "last": 1})


class BlockWriter(wiring.Component):
    """Issues the writes of one round after the other and streams the data (paper 3.3).

    The bursts of a round are issued back to back as soon as all of the round is in the FIFOs;
    then the data follows at one beat a cycle. The data of a burst is never valid before its
    address is; it does not wait for the address to be accepted.

    Parameters
    ----------
    layout
        Of ``rounds``.
    tensors
        Most tensors of a round.
    buffer_blocks
        Blocks that each FIFO holds.
    addr_width
        Width of byte addresses in bits.

    Members
    -------
    start : In(1)
        Begins a run; the writer must be ``idle``.
    rounds : In(:class:`~hw.stream.rounds.RoundsLayout`)
        The rounds of the run; must hold still until it is done.
    last_tensor : In(range(tensors))
        Index of the last tensor of each round; likewise.
    lines : In(line), one for each tensor
        Number of the first line of each tensor, taken over at ``start``.
    last_strobes : In(64)
        Byte strobes of the last beat of each tensor; must hold still.
    aw : Out(stream of :class:`~hw.stream.bursts.BurstLayout`)
        Bursts to be written.
    w : Out(stream of :class:`WriteBeatLayout`)
        Their data.
    b : In(stream of ``BRESP``)
        Their responses.
    i : In(stream of lines), one for each tensor
        From the FIFOs.
    filled : In(1)
        Pulse: the FIFOs hold one more complete round.
    stored : Out(1)
        Pulse: the last beat of a round left the FIFOs.
    stop : In(1)
        Issue no further burst of this run; must stay high until the next ``start``.
    idle : Out(1)
        Every burst issued is answered, and none is to issue (because all are or because of
        ``stop``).
    error : Out(1)
        Pulse: a burst was answered with an error response.
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
                "last_strobes": In(LINE_BYTES),
                "aw": Out(stream.Signature(BurstLayout(addr_width=addr_width))),
                "w": Out(stream.Signature(WriteBeatLayout())),
                "b": In(stream.Signature(2)),
                "i": In(stream.Signature(LINE_BITS)).array(tensors),
                "filled": In(1),
                "stored": Out(1),
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
        m.submodules.departure = departure = RoundWalker(layout=self._layout, tensors=self._tensors)

        bursts_max = max_bursts(
            layout=self._layout, tensors=self._tensors, buffer_blocks=self._buffer_blocks
        )
        full_rounds = Signal(range(self._buffer_blocks + 1))
        without_data = Signal(range(bursts_max + 1))
        # Room in the FIFOs does not bound this one: answers may lag behind the data. A round
        # that begins below the limit adds bursts_max at most.
        unanswered = Signal(range(3 * bursts_max))
        wiring.connect(m, wiring.flipped(self.aw), bursts.o)
        m.d.comb += [
            bursts.start.eq(self.start),
            bursts.rounds.eq(self.rounds),
            bursts.last_tensor.eq(self.last_tensor),
            bursts.allowed.eq((full_rounds != 0) & (unanswered < 2 * bursts_max)),
            bursts.stop.eq(self.stop),
        ]
        m.d.comb += [inner.eq(outer) for inner, outer in zip(bursts.lines, self.lines, strict=True)]
        with m.If(self.start):
            m.d.sync += full_rounds.eq(0)
        with m.Elif(bursts.begun & ~self.filled):
            m.d.sync += full_rounds.eq(full_rounds - 1)
        with m.Elif(self.filled & ~bursts.begun):
            m.d.sync += full_rounds.eq(full_rounds + 1)

        # Where in its 4 KB page each tensor is: bursts end at the same places as those of the
        # generator, so their lengths need not be handed over.
        page_lines = Array(
            Signal(range(AXI_BURST_LINES), name=f"page_line_{index}", reset_less=True)
            for index in range(self._tensors)
        )
        page_line = page_lines[departure.tensor]
        beat_valid = Signal()
        burst_end = Signal()
        taken = beat_valid & self.w.ready
        m.d.comb += [
            departure.start.eq(self.start),
            departure.rounds.eq(self.rounds),
            departure.last_tensor.eq(self.last_tensor),
            departure.step.eq(taken),
            departure.step_beats.eq(1),
            burst_end.eq(departure.tensor_end | page_line.all()),
            self.stored.eq(taken & departure.round_end),
            self.w.valid.eq(beat_valid),
            self.w.payload.last.eq(burst_end),
            self.w.payload.strb.eq(
                Mux(departure.last_round & departure.tensor_end, self.last_strobes, ~0)
            ),
        ]
        for index, i in enumerate(self.i):
            with m.If(departure.tensor == index):
                m.d.comb += [
                    self.w.payload.data.eq(i.payload),
                    beat_valid.eq(i.valid & (without_data != 0)),
                    i.ready.eq(taken),
                ]
        with m.If(self.start):
            m.d.sync += [
                kept.eq(line[: len(kept)])
                for kept, line in zip(page_lines, self.lines, strict=True)
            ]
        with m.Elif(taken):
            m.d.sync += page_line.eq(page_line + 1)

        data_done = taken & burst_end
        with m.If(bursts.offered & ~data_done):
            m.d.sync += without_data.eq(without_data + 1)
        with m.Elif(data_done & ~bursts.offered):
            m.d.sync += without_data.eq(without_data - 1)
        with m.If(bursts.offered & ~self.b.valid):
            m.d.sync += unanswered.eq(unanswered + 1)
        with m.Elif(self.b.valid & ~bursts.offered):
            m.d.sync += unanswered.eq(unanswered - 1)

        m.d.comb += [
            self.b.ready.eq(1),
            self.error.eq(self.b.valid & self.b.payload[1]),
            self.idle.eq(bursts.idle & (unanswered == 0)),
        ]
        return m
