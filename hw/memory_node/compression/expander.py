"""Puts the zeros back into blocks that come from a memory-node."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.line import LINE_BITS
from hw.memory_node.compression.words import (
    MASKS,
    WORDS,
    BlockLine,
    StoredLine,
    mask_lines,
    rotated,
    spread,
    words_of,
    zeros_before,
)
from hw.memory_node.flit import PACKET_LINES
from hw.memory_node.link.port import COUNTER_BITS
from hw.stream.fifo import StreamFifo

__all__ = ["ZeroExpander"]

_BLOCKS = 8
"""That are inside at once, whole or in part."""

_FIFO_LINES = 16
_GIVEN_ROOM = 4
"""What may come after it has been seen that no more is taken."""

_Block = data.StructLayout({"lines": range(PACKET_LINES + 1), "whole": 1})


class ZeroExpander(wiring.Component):
    """What :class:`~hw.memory_node.compression.compressor.ZeroCompressor` took, of what it gave.

    One line a cycle out as long as what it needs has come; masks come while the lines of the block
    before go out. The first line leaves nine cycles after its words have come.

    Members
    -------
    i : In(stream of :class:`~hw.memory_node.compression.words.StoredLine`)
        Whole blocks, as stored; ``last`` is not needed.
    o : Out(stream of :class:`~hw.memory_node.compression.words.BlockLine`)
        As they were.
    lines_in, lines_out : Out(48)
        Lines taken and given since reset.
    """

    i: Any
    o: Any
    lines_in: Any
    lines_out: Any

    def __init__(self) -> None:
        super().__init__(
            {
                "i": In(stream.Signature(StoredLine)),
                "o": Out(stream.Signature(BlockLine)),
                "lines_in": Out(COUNTER_BITS),
                "lines_out": Out(COUNTER_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.masks = masks = Memory(
            shape=LINE_BITS, depth=2 * _BLOCKS, init=[], attrs={"ram_style": "distributed"}
        )
        m.submodules.blocks = blocks = StreamFifo(shape=_Block, depth=_BLOCKS, early=True)
        m.submodules.words = words = StreamFifo(shape=LINE_BITS, depth=_FIFO_LINES, early=True)
        m.submodules.given = given = StreamFifo(shape=BlockLine, depth=_FIFO_LINES, early=True)
        self._take(m, masks.write_port(), blocks, words.i)
        self._fill(m, masks.read_port(domain="comb"), blocks.o, words.o, given)
        wiring.connect(m, given.o, wiring.flipped(self.o))
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += self.lines_out.eq(self.lines_out + 1)
        return m

    def _take(self, m: Any, masks: Any, blocks: StreamFifo, words: Any) -> None:
        """Parts masks from words."""
        number, block = Signal(range(PACKET_LINES)), Signal(range(_BLOCKS))
        stored: Any = self.i.payload
        whole, is_mask = stored.stored == stored.lines, Signal()
        before = Mux(whole, 0, mask_lines(stored.lines))
        moved = self.i.valid & self.i.ready
        last = number == stored.stored - 1
        m.d.comb += [
            is_mask.eq(number < before),
            self.i.ready.eq(words.ready & (blocks.level < _BLOCKS - 1)),
            masks.addr.eq(Cat(number[0], block)),
            masks.data.eq(stored.line),
            masks.en.eq(moved & is_mask),
            words.valid.eq(moved & ~is_mask),
            words.payload.eq(stored.line),
            # Its masks are there, or it has none.
            blocks.i.valid.eq(moved & (number == Mux(whole, 0, before - 1))),
            blocks.i.payload.lines.eq(stored.lines),
            blocks.i.payload.whole.eq(whole),
        ]
        with m.If(moved):
            m.d.sync += [
                number.eq(Mux(last, 0, number + 1)),
                block.eq(block + last),
                self.lines_in.eq(self.lines_in + 1),
            ]

    def _fill(self, m: Any, masks: Any, blocks: Any, words: Any, given: StreamFifo) -> None:
        """Makes a line a cycle of masks and words."""
        asked, counted, go = (Signal(name=name) for name in ("asked", "counted", "go"))
        counts, asks = Signal(), Signal()
        m.d.comb += [counts.eq(go | ~counted), asks.eq(counts | ~asked)]

        # The mask of a line.
        number, block = Signal(range(PACKET_LINES)), Signal(range(_BLOCKS))
        flags, last = Signal(WORDS), Signal()
        ends = number == blocks.payload.lines - 1
        m.d.comb += [masks.addr.eq(Cat(number[-1], block)), blocks.ready.eq(asks & ends)]
        mask = masks.data.word_select(number[: (MASKS - 1).bit_length()], WORDS)
        with m.If(asks):
            m.d.sync += [
                asked.eq(blocks.valid),
                flags.eq(mask | blocks.payload.whole.replicate(WORDS)),
                last.eq(ends),
            ]
            with m.If(blocks.valid):
                m.d.sync += [number.eq(Mux(ends, 0, number + 1)), block.eq(block + ends)]

        # How many zeros are before each word.
        zeros = zeros_before(m, flags)
        counted_zeros = [Signal.like(each, name=f"counted_{i}") for i, each in enumerate(zeros)]
        counted_flags, counted_last = Signal(WORDS), Signal()
        with m.If(counts):
            m.d.sync += [counted.eq(asked), counted_flags.eq(flags), counted_last.eq(last)]
            m.d.sync += [now.eq(then) for now, then in zip(counted_zeros, zeros, strict=True)]

        # Words of the line before that are left, and as many of the next as are needed.
        left, needs = Signal(range(WORDS)), Signal()
        rest = Signal(LINE_BITS, reset_less=True)
        wanted = WORDS - counted_zeros[WORDS]
        m.d.comb += [
            needs.eq(wanted > left),
            go.eq(counted & (~needs | words.valid) & (given.level <= _FIFO_LINES - _GIVEN_ROOM)),
            words.ready.eq(go & needs),
        ]
        turn, line_flags, moved, line_last = Signal.like(left), Signal(WORDS), Signal(), Signal()
        line_zeros = [Signal.like(each, name=f"line_{i}") for i, each in enumerate(zeros)]
        window = [Signal(LINE_BITS // WORDS, name=f"window_{i}") for i in range(WORDS)]
        m.d.sync += [
            moved.eq(go),
            turn.eq(left),
            line_flags.eq(counted_flags),
            line_last.eq(counted_last),
        ]
        m.d.sync += [now.eq(then) for now, then in zip(line_zeros, counted_zeros, strict=True)]
        pairs = zip(words_of(rest), words_of(words.payload), strict=True)
        for place, (old, new) in enumerate(pairs):
            m.d.sync += window[place].eq(Mux(place + left >= WORDS, old, new))
        with m.If(go):
            m.d.sync += left.eq(Mux(counted_last, 0, left + Mux(needs, WORDS, 0) - wanted))
            with m.If(needs):
                m.d.sync += rest.eq(words.payload)

        # Each word to its place.
        m.d.comb += [
            given.i.valid.eq(moved),
            given.i.payload.line.eq(spread(rotated(m, window, turn), line_flags, line_zeros)),
            given.i.payload.last.eq(line_last),
        ]
