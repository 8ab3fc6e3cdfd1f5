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
    ones,
    ones_before,
    rotated,
    spread,
    words_of,
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
_Needed = data.StructLayout({"flags": WORDS, "count": range(WORDS + 1), "last": 1})
"""For a line: which words it has, how many they are, and whether it ends its block."""


class ZeroExpander(wiring.Component):
    """What :class:`~hw.memory_node.compression.compressor.ZeroCompressor` took, of what it gave.

    One line a cycle out as long as what it needs has come; masks come while the lines of the block
    before go out.

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
        # The mask of a line, and how many words it takes.
        number, block = Signal(range(PACKET_LINES)), Signal(range(_BLOCKS))
        m.submodules.needs = needs = StreamFifo(shape=_Needed, depth=_BLOCKS, early=True)
        asked, asks, ends = Signal(), Signal(), Signal()
        flags, last = Signal(WORDS), Signal()
        mask = masks.data.word_select(number[: (MASKS - 1).bit_length()], WORDS)
        m.d.comb += [
            asks.eq(blocks.valid & (needs.level < _BLOCKS - 2)),
            ends.eq(number == blocks.payload.lines - 1),
            masks.addr.eq(Cat(number[-1], block)),
            blocks.ready.eq(asks & ends),
            needs.i.valid.eq(asked),
            needs.i.payload.flags.eq(flags),
            needs.i.payload.count.eq(ones(flags)),
            needs.i.payload.last.eq(last),
        ]
        m.d.sync += [
            asked.eq(asks),
            flags.eq(mask | blocks.payload.whole.replicate(WORDS)),
            last.eq(ends),
        ]
        with m.If(asks):
            m.d.sync += [number.eq(Mux(ends, 0, number + 1)), block.eq(block + ends)]

        # Words that are left of a line, and the next line if they are not enough.
        line: Any = needs.o.payload
        left, more, room = Signal(range(WORDS)), Signal(), Signal()
        rest = Signal(LINE_BITS, reset_less=True)
        window = [Signal(LINE_BITS // WORDS, name=f"window_{i}") for i in range(WORDS)]
        turn, moved, moved_line = Signal.like(left), Signal(), Signal.like(line)
        ranks = [Signal(4, name=f"rank_{place}") for place in range(WORDS)]
        go = needs.o.valid & room & (~more | words.valid)
        m.d.comb += [
            more.eq(line.count > left),
            needs.o.ready.eq(room & (~more | words.valid)),
            words.ready.eq(needs.o.valid & room & more),
        ]
        m.d.sync += [
            room.eq(given.level <= _FIFO_LINES - _GIVEN_ROOM),
            moved.eq(go),
            moved_line.eq(line),
            turn.eq(left),
            Cat(ranks).eq(Cat(ones_before(line.flags))),
        ]
        pairs = zip(words_of(rest), words_of(words.payload), strict=True)
        for place, (old, new) in enumerate(pairs):
            m.d.sync += window[place].eq(Mux(place + left >= WORDS, old, new))
        with m.If(go):
            # A line more makes no difference modulo 16.
            m.d.sync += left.eq(Mux(line.last, 0, left - line.count))
            with m.If(more):
                m.d.sync += rest.eq(words.payload)

        # Each word to its place.
        m.d.comb += [
            given.i.valid.eq(moved),
            given.i.payload.line.eq(spread(rotated(m, window, turn), moved_line.flags, ranks)),
            given.i.payload.last.eq(moved_line.last),
        ]
