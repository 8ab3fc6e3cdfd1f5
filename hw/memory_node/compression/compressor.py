"""Leaves out the zeros of blocks on their way to a memory-node."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data
from amaranth.lib.memory import Memory

from hw.logic.line import LINE_BITS
from hw.logic.storage import NEVER_BOTH
from hw.memory_node.compression.words import (
    MASKS,
    WORDS,
    BlockLine,
    BlockStage,
    StoredLine,
    compacted,
    cursor,
    mask_lines,
    ones,
    ones_before,
    rotated,
    words_of,
)
from hw.memory_node.flit import PACKET_LINES
from hw.stream.fifo import StreamFifo

__all__ = ["ZeroCompressor"]

_BLOCKS = 16
"""That are inside at once, whole or in part."""

_STORE_LINES = 2 * PACKET_LINES

_PACKED_LINES = 16
_PACKED_ROOM = 8
"""What may come of lines that have been read when no more are."""

_Block = data.StructLayout(
    {"lines": range(PACKET_LINES + 1), "stored": range(PACKET_LINES + 1), "masks": range(3)}
)
"""``masks``: lines of them, none if it is not compressed."""
_Stored = data.StructLayout({"line": LINE_BITS, "flags": WORDS})
_Mark = data.StructLayout({"valid": 1, "last": 1})


class ZeroCompressor(BlockStage):
    """Compresses blocks of 1 to 64 lines (docs/memory-node-spec.md, "Compression").

    A block is kept until it is known whether it gets smaller; if so, its first line leaves four
    cycles after its last one has come. One line a cycle in.

    Members are those of :class:`~hw.memory_node.compression.words.BlockStage`: ``i`` takes
    ``BlockLine``, no more than 64 of a block, and ``o`` gives ``StoredLine``.
    """

    def __init__(self) -> None:
        super().__init__(taken=BlockLine, given=StoredLine)

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.store = store = Memory(
            shape=_Stored, depth=_STORE_LINES, init=[], attrs=NEVER_BOTH
        )
        m.submodules.masks = masks = Memory(
            shape=LINE_BITS, depth=2 * _BLOCKS, init=[], attrs={"ram_style": "distributed"}
        )
        queues = [StreamFifo(shape=_Block, depth=_BLOCKS, early=True) for _ in range(2)]
        m.submodules.to_read, m.submodules.to_send = to_read, to_send = queues
        m.submodules.packed = packed = StreamFifo(shape=LINE_BITS, depth=_PACKED_LINES, early=True)
        got = Signal(range(2 * _STORE_LINES))
        taken, given = self.moved(m)
        self._take(m, taken, store.write_port(), masks.write_port(granularity=WORDS), queues, got)
        self._pack(m, store.read_port(), to_read.o, packed, got)
        self._send(m, given, masks.read_port(domain="comb"), to_send.o, packed.o)
        return m

    def _take(
        self, m: Any, taken: Any, store: Any, masks: Any, queues: list[StreamFifo], got: Any
    ) -> None:
        """Keeps lines and their masks, and counts what is not zero."""
        line: Any = Signal(BlockLine, reset_less=True)
        flags = Signal(WORDS, reset_less=True)
        present, ended, put = Signal(), Signal(), Signal.like(got)
        number, block = cursor(m, _BLOCKS, present, line.last)
        words = Signal(range(WORDS * PACKET_LINES + 1))
        all_words, lines = Signal.like(words), Signal(range(PACKET_LINES + 1))
        total = words + ones(flags)
        lane = number[: (MASKS - 1).bit_length()]
        begins = lane == 0
        room = (put - got)[: len(put)] < _STORE_LINES - 1
        m.d.comb += [
            self.i.ready.eq(room & (queues[1].level < _BLOCKS - 3)),
            store.addr.eq(put),
            store.data.line.eq(line.line),
            store.data.flags.eq(flags),
            store.en.eq(present),
            masks.addr.eq(Cat(number[-1], block)),
            # The first of a line of masks makes the others zero.
            masks.data.eq(Cat(flags, Mux(begins, 0, flags).replicate(MASKS - 1))),
            masks.en.eq(Mux(present, Mux(begins, -1, 1 << lane), 0)),
        ]
        m.d.sync += [
            line.eq(self.i.payload),
            flags.eq(Cat(word.any() for word in words_of(self.i.payload.line))),
            present.eq(taken),
            put.eq(put + present),
            ended.eq(present & line.last),
            all_words.eq(total),
            lines.eq(number + 1),
        ]
        with m.If(present):
            m.d.sync += words.eq(Mux(line.last, 0, total))
        masks_first = mask_lines(lines)
        fewest = masks_first + (all_words + WORDS - 1 >> WORDS.bit_length() - 1)
        smaller = fewest < lines
        for queue in queues:
            m.d.comb += [
                queue.i.valid.eq(ended),
                queue.i.payload.lines.eq(lines),
                queue.i.payload.stored.eq(Mux(smaller, fewest, lines)),
                queue.i.payload.masks.eq(Mux(smaller, masks_first, 0)),
            ]

    def _pack(self, m: Any, store: Any, blocks: Any, packed: StreamFifo, got: Any) -> None:
        """Reads blocks that are complete, and puts words into lines. All words of a block that is
        not compressed count as if they were not zero.

        A full line waits for the next word or the end of its block, so that there is never more
        than one to give.
        """
        go, last, whole = Signal(), Signal(), Signal()
        number, _ = cursor(m, 1, go, last)
        read, counted = (Signal(_Mark, name=name) for name in ("read", "counted"))
        m.d.comb += [
            go.eq(blocks.valid & (packed.level <= _PACKED_LINES - _PACKED_ROOM)),
            last.eq(number == blocks.payload.lines - 1),
            store.addr.eq(got),
            store.en.eq(go),
            blocks.ready.eq(go & last),
        ]

        # How many zeros are before each word that has been read.
        flags = store.data.flags | whole.replicate(WORDS)
        line, counted_flags = Signal(LINE_BITS, reset_less=True), Signal(WORDS, reset_less=True)
        zeros = [Signal(4, name=f"zeros_before_{place}") for place in range(WORDS)]
        count = Signal(range(WORDS + 1))
        m.d.sync += [
            got.eq(got + go),
            read.valid.eq(go),
            read.last.eq(last),
            whole.eq(blocks.payload.masks == 0),
            counted.eq(read),
            line.eq(store.data.line),
            counted_flags.eq(flags),
            count.eq(ones(flags)),
            Cat(zeros).eq(Cat(ones_before(~flags))),
        ]

        # Words go together, and it is known where they go.
        held, base = Signal(range(WORDS + 1)), Signal(range(WORDS + 1))
        total, ended = Signal(range(2 * WORDS + 1)), Signal()
        fills, flush = Signal(), Signal()
        together = compacted(m, words_of(line), counted_flags, zeros)
        words = [Signal.like(word, name=f"together_{i}") for i, word in enumerate(together)]
        gives, moves, turn = Signal(), Signal(), Signal(range(WORDS))
        old, keep, take = (Signal(WORDS, name=name) for name in ("old", "keep", "take"))
        below, reached, beyond = (
            Cat(count > place for place in places)
            for count, places in (
                (base, range(WORDS)),
                (total, range(WORDS)),
                (total, range(WORDS, 2 * WORDS)),
            )
        )
        m.d.comb += [
            base.eq(Mux(ended, 0, held)),
            total.eq(base + count),
            fills.eq(counted.valid & (total > WORDS)),
            flush.eq(ended & held.any()),
        ]
        m.d.sync += [
            ended.eq(counted.valid & counted.last),
            gives.eq(fills | flush),
            moves.eq(counted.valid),
            turn.eq(base),
            old.eq(below | flush.replicate(WORDS)),
            keep.eq(below & ~fills.replicate(WORDS)),
            take.eq(Mux(fills, beyond, reached & ~below)),
            Cat(words).eq(Cat(together)),
        ]

        with m.If(counted.valid):
            m.d.sync += held.eq(Mux(fills, total - WORDS, total))
        with m.Elif(ended):
            m.d.sync += held.eq(0)

        # The line that is being filled.
        given: list[Any] = []
        for place, word in enumerate(rotated(m, words, turn)):
            kept = Signal.like(word, name=f"filling_{place}")
            given.append(Mux(old[place], kept, word))
            with m.If(moves):
                m.d.sync += kept.eq(Mux(keep[place], kept, Mux(take[place], word, 0)))
        m.d.comb += [packed.i.valid.eq(gives), packed.i.payload.eq(Cat(given))]

    def _send(self, m: Any, given: Any, masks: Any, blocks: Any, packed: Any) -> None:
        """Gives a block: its masks, if it is compressed, and its words."""
        last = Signal()
        number, block = cursor(m, _BLOCKS, given, last)
        from_masks = number < blocks.payload.masks
        m.d.comb += [
            last.eq(number == blocks.payload.stored - 1),
            masks.addr.eq(Cat(number[0], block)),
            self.o.valid.eq(blocks.valid & (from_masks | packed.valid)),
            self.o.payload.line.eq(Mux(from_masks, masks.data, packed.payload)),
            self.o.payload.last.eq(last),
            self.o.payload.lines.eq(blocks.payload.lines),
            self.o.payload.stored.eq(blocks.payload.stored),
            packed.ready.eq(given & ~from_masks),
            blocks.ready.eq(given & last),
        ]
