"""Puts the zeros back into blocks that come from a memory-node."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory

from hw.logic.line import LINE_BITS
from hw.memory_node.compression.words import (
    MASKS,
    WORDS,
    BlockLine,
    BlockStage,
    StoredLine,
    cursor,
    mask_lines,
    ones,
    ones_before,
    rotated,
    spread,
    words_of,
)
from hw.memory_node.flit import PACKET_LINES
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


class ZeroExpander(BlockStage):
    """What :class:`~hw.memory_node.compression.compressor.ZeroCompressor` took, of what it gave.

    One line a cycle out as long as what it needs has come; masks come while the lines of the block
    before go out. Where two lines of masks follow blocks of one line only, a cycle is lost.

    Members are those of :class:`~hw.memory_node.compression.words.BlockStage`: ``i`` takes
    ``StoredLine`` of whole blocks, whose ``last`` is not needed, and ``o`` gives ``BlockLine``.
    """

    def __init__(self) -> None:
        super().__init__(taken=StoredLine, given=BlockLine)

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.masks = masks = Memory(
            shape=LINE_BITS, depth=2 * _BLOCKS, init=[], attrs={"ram_style": "distributed"}
        )
        m.submodules.blocks = blocks = StreamFifo(shape=_Block, depth=_BLOCKS, early=True)
        m.submodules.words = words = StreamFifo(shape=LINE_BITS, depth=_FIFO_LINES, early=True)
        m.submodules.given = given = StreamFifo(shape=BlockLine, depth=_FIFO_LINES, early=True)
        taken, _ = self.moved(m)
        self._take(m, taken, masks.write_port(), blocks, words.i)
        self._fill(m, masks.read_port(domain="comb"), blocks.o, words.o, given)
        wiring.connect(m, given.o, wiring.flipped(self.o))
        return m

    def _take(self, m: Any, taken: Any, masks: Any, blocks: StreamFifo, words: Any) -> None:
        """Parts masks from words."""
        stored: Any = self.i.payload
        last = Signal()
        number, block = cursor(m, _BLOCKS, taken, last)
        whole = stored.stored == stored.lines
        before = Mux(whole, 0, mask_lines(stored.lines))
        is_mask = number < before
        m.d.comb += [
            last.eq(number == stored.stored - 1),
            self.i.ready.eq(words.ready & (blocks.level < _BLOCKS - 1)),
            masks.addr.eq(Cat(number[0], block)),
            masks.data.eq(stored.line),
            masks.en.eq(taken & is_mask),
            words.valid.eq(taken & ~is_mask),
            words.payload.eq(stored.line),
            # Its masks are there; a whole block waits for another line, so that it leaves room for
            # the masks of the next.
            blocks.i.valid.eq(taken & (number == Mux(whole, stored.lines != 1, before - 1))),
            blocks.i.payload.lines.eq(stored.lines),
            blocks.i.payload.whole.eq(whole),
        ]

    def _fill(self, m: Any, masks: Any, blocks: Any, words: Any, given: StreamFifo) -> None:
        """Makes a line a cycle of masks and words."""
        # The mask of a line, and how many words it takes.
        m.submodules.needs = needs = StreamFifo(shape=_Needed, depth=_BLOCKS, early=True)
        asked, asks, ends = Signal(), Signal(), Signal()
        number, block = cursor(m, _BLOCKS, asks, ends)
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

        # Words that are left of a line, and the next line if they are not enough.
        line: Any = needs.o.payload
        left, more, room, go = Signal(range(WORDS)), Signal(), Signal(), Signal()
        rest = Signal(LINE_BITS, reset_less=True)
        window = [Signal(LINE_BITS // WORDS, name=f"window_{i}") for i in range(WORDS)]
        turn, moved, moved_line = Signal.like(left), Signal(), Signal.like(line)
        ranks = [Signal(4, name=f"rank_{place}") for place in range(WORDS)]
        m.d.comb += [
            more.eq(line.count > left),
            needs.o.ready.eq(room & (~more | words.valid)),
            go.eq(needs.o.valid & needs.o.ready),
            words.ready.eq(needs.o.valid & room & more),
        ]
        m.d.sync += [
            asked.eq(asks),
            flags.eq(mask | blocks.payload.whole.replicate(WORDS)),
            last.eq(ends),
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
