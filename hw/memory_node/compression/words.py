"""What the compressor and the expander share: lines as sixteen words, networks that move words
within a line, and the frame of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.line import LINE_BITS
from hw.memory_node.flit import PACKET_LINES
from hw.memory_node.link.port import COUNTER_BITS

__all__ = [
    "MASKS",
    "WORDS",
    "BlockLine",
    "BlockStage",
    "StoredLine",
    "compacted",
    "cursor",
    "mask_lines",
    "ones",
    "ones_before",
    "rotated",
    "spread",
    "words_of",
]

WORDS = 16
_WORD_BITS = LINE_BITS // WORDS

MASKS = LINE_BITS // WORDS
"""Lines of a block whose masks are in one line."""

BlockLine = data.StructLayout({"line": LINE_BITS, "last": 1})
"""A line of a block; ``last`` is with its last one."""

StoredLine = data.StructLayout(
    {
        "line": LINE_BITS,
        "last": 1,
        "lines": range(PACKET_LINES + 1),
        "stored": range(PACKET_LINES + 1),
    }
)
"""A line of a block as it is stored. ``lines`` are those of the block, ``stored`` those that it is
stored in, as many if it is not compressed; both are the same with all its lines."""


class BlockStage(wiring.Component):
    """Takes lines of blocks and gives others.

    Members
    -------
    i : In(stream of ``taken``)
    o : Out(stream of ``given``)
    lines_in, lines_out : Out(48)
        Lines taken and given since reset.
    """

    def __init__(self, *, taken: data.Layout, given: data.Layout) -> None:
        counts = {name: Out(COUNTER_BITS) for name in ("lines_in", "lines_out")}
        ports = {"i": In(stream.Signature(taken)), "o": Out(stream.Signature(given))}
        super().__init__(ports | counts)

    def moved(self, m: Any) -> tuple[Any, Any]:
        """Whether a line is taken, and whether one is given, which is counted."""
        moved = self.i.valid & self.i.ready, self.o.valid & self.o.ready
        for count, moves in zip((self.lines_in, self.lines_out), moved, strict=True):
            with m.If(moves):
                m.d.sync += count.eq(count + 1)
        return moved


def cursor(m: Any, blocks: int, moved: Any, last: Any) -> tuple[Any, Any]:
    """The numbers of a line in its block and of the block, modulo ``blocks``: they go on when a
    line has ``moved``."""
    number = Signal(range(PACKET_LINES), name="number")
    block = Signal(range(blocks), name="block")
    with m.If(moved):
        m.d.sync += [number.eq(Mux(last, 0, number + 1)), block.eq(block + last)]
    return number, block


def words_of(line: Any) -> list[Any]:
    """The words of a line or, put together with ``Cat``, of as many bits."""
    return [line[at : at + _WORD_BITS] for at in range(0, LINE_BITS, _WORD_BITS)]


def mask_lines(lines: Any) -> Any:
    """Lines of masks that a compressed block of so many lines begins with."""
    return Mux(lines > MASKS, 2, 1)


def ones(flags: Any) -> Any:
    """How many of the flags are set."""
    half = len(flags) // 2
    return ones(flags[:half]) + ones(flags[half:]) if half else flags


def ones_before(flags: Any) -> list[Any]:
    """For each flag how many of those before it are set, in 4 bits."""
    return [(ones(flags[:number]) | Const(0, 4))[:4] for number in range(WORDS)]


def compacted(m: Module, words: Sequence[Any], flags: Any, zeros: Sequence[Any]) -> list[Any]:
    """The words with a flag, in their order, from the first place on; the others are anything.

    A word goes down by the zeros before it: first by 0 to 3 places, then by 0, 4, 8 or 12, so that
    no two meet.
    """
    places = [(words[at], flags[at], zeros[at]) for at in range(WORDS)]
    for unit in (1, WORDS // 4):
        reached: list[Any] = []
        for place in range(WORDS):
            sources = places[place : place + 3 * unit + 1 : unit]
            word, filled, further, source = (
                Signal(shape, name=f"{name}_{unit}_{place}")
                for name, shape in (("word", _WORD_BITS), ("filled", 1), ("further", 4), ("way", 2))
            )
            comes = [flag & (left[:2] == step) for step, (_, flag, left) in enumerate(sources)]
            # One of them at most.
            m.d.comb += [
                filled.eq(Cat(comes).any()),
                source.eq(Cat(Cat(comes[1::2]).any(), Cat(comes[2:]).any())),
                word.eq(Cat(value for value, _, _ in sources).word_select(source, _WORD_BITS)),
                further.eq(Cat(left for _, _, left in sources).word_select(source, 4) >> 2),
            ]
            reached.append((word, filled, further))
        places = reached
    return [word for word, _, _ in places]


def rotated(m: Module, words: Sequence[Any], amount: Any) -> list[Any]:
    """The words, each ``amount`` (4 bits) places further up, and from the top to the bottom."""
    for unit in (1, WORDS // 4):
        steps = amount[:2] if unit == 1 else amount[2:4]
        moved: list[Any] = []
        for place in range(WORDS):
            word = Signal(_WORD_BITS, name=f"rotated_{unit}_{place}")
            sources = Cat(words[(place - unit * step) % WORDS] for step in range(4))
            m.d.comb += word.eq(sources.word_select(steps, _WORD_BITS))
            moved.append(word)
        words = moved
    return list(words)


def spread(words: Sequence[Any], flags: Any, ranks: Sequence[Any]) -> Any:
    """A line that has the words, in their order, where the flags are, and zeros elsewhere.

    ``ranks`` are the numbers of words before each place.
    """
    places: list[Any] = []
    for place, rank in enumerate(ranks):
        sources = Cat(words[: place + 1])
        word = sources.word_select(rank[: place.bit_length()], _WORD_BITS)
        places.append(Mux(flags[place], word, 0))
    return Cat(places)
