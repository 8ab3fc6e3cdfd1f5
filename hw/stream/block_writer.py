"""Writer of the blocks of several tensors, round-robin, from their FIFOs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from hw.logic.counter import step, under_way
from hw.logic.line import AXI_BURST_LINES, LINE_BITS, LINE_BYTES
from hw.stream.block_mover import BlockMover

__all__ = ["BlockWriter"]


class BlockWriter(BlockMover):
    """Issues the writes of one round after the other and streams the data (paper 3.3).

    The bursts of a round are issued back to back as soon as the whole round is in the FIFOs. The
    data follows at one beat a cycle. The data of a burst is never valid before its address; it
    does not wait for the address to be accepted. The writer is idle when every burst is answered.

    Parameters and the other members are those of :class:`~hw.stream.block_mover.BlockMover`.

    Members
    -------
    last_strobes : In(64), if ``uneven`` one for each tensor
        Byte strobes of the last beat of each tensor; must hold still.
    i : In(stream of lines), one for each tensor
        Lines from the FIFOs.
    filled : In(1)
        Pulse: the FIFOs hold one more complete round.
    stored : Out(1)
        Pulse: the last beat of a round left the FIFOs.

    Examples
    --------
    >>> from hw.stream.rounds import RoundsLayout
    >>> layout = RoundsLayout(block_beats=64, beats_width=20)
    >>> writer = BlockWriter(tensors=3, layout=layout, buffer_blocks=2, addr_width=34)
    >>> len(writer.i), writer.axi.wdata.shape()
    (3, unsigned(512))
    """

    def __init__(self, *, tensors: int, uneven: bool = False, **options: Any) -> None:
        strobes = In(LINE_BYTES)
        self._uneven = uneven
        members = {
            "last_strobes": strobes.array(tensors) if uneven else strobes,
            "i": In(stream.Signature(LINE_BITS)).array(tensors),
            "filled": In(1),
            "stored": Out(1),
        }
        super().__init__(("aw", "w", "b"), members, tensors=tensors, uneven=uneven, **options)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        most = self._most_bursts
        full_rounds = Signal(range(self._buffer_blocks + 1))
        # The FIFOs do not bound this counter: answers may lag behind the data. A round that
        # begins below the limit adds at most `most` bursts.
        unanswered = Signal(range(3 * most))
        bursts = self._bursts(m, (full_rounds != 0) & (unanswered < 2 * most))
        departure = self._walker(m, "departure")
        step(m, full_rounds, up=self.filled, down=bursts.begun)
        with m.If(self.load):
            m.d.sync += full_rounds.eq(0)

        # Each tensor's line within its 4 KB page. It gives the ends of bursts, so the generator
        # need not hand over their lengths.
        page_lines = Array(
            Signal(range(AXI_BURST_LINES), name=f"page_line_{index}", reset_less=True)
            for index in range(self._tensors)
        )
        page_line = page_lines[departure.tensor]
        strobes: Any = self.last_strobes
        if self._uneven:
            strobes = Array(strobes)[departure.tensor]
        beat_valid = Signal()
        burst_end = Signal()
        axi = self.axi
        taken = beat_valid & axi.wready
        _, none_owed = under_way(
            m, "without_data", most, begun=bursts.offered, ended=taken & burst_end
        )
        m.d.comb += [
            departure.step.eq(taken),
            burst_end.eq(departure.tensor_end | page_line.all()),
            self.stored.eq(taken & departure.round_end),
            axi.wvalid.eq(beat_valid),
            axi.wlast.eq(burst_end),
            axi.wstrb.eq(Mux(departure.last_round & departure.tensor_end, strobes, ~0)),
        ]
        for index, i in enumerate(self.i):
            with m.If(departure.tensor == index):
                m.d.comb += [
                    axi.wdata.eq(i.payload),
                    beat_valid.eq(i.valid & ~none_owed),
                    # The FIFO knows itself, earlier in the cycle, if it has a beat.
                    i.ready.eq(axi.wready & ~none_owed),
                ]
        with m.If(self.load):
            m.d.sync += [
                kept.eq(line[: len(kept)])
                for kept, line in zip(page_lines, self.lines, strict=True)
            ]
        with m.Elif(taken):
            m.d.sync += page_line.eq(page_line + 1)

        step(m, unanswered, up=bursts.offered, down=axi.bvalid)
        m.d.comb += [
            axi.bready.eq(1),
            self.error.eq(axi.bvalid & axi.bresp[1]),
            self.idle.eq(bursts.idle & (unanswered == 0)),
            self.upset.eq(bursts.upset | departure.upset),
        ]
        return m
