"""What the parts of the pool tell one another: works as a bank takes them, tiles, jobs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from amaranth.hdl import signed
from amaranth.lib import data, enum

from hw.pim.config import BEAT_BYTES, PimConfig
from hw.pim.work.descriptor import TENSORS

__all__ = [
    "BEAT_WORDS",
    "COORDINATE_BITS",
    "INTERLEAVE",
    "LANE_BITS",
    "NO_LINE",
    "VECTOR_BITS",
    "Elementwise",
    "Jobs",
    "OperandBuffer",
    "Padded",
    "Second",
]

BEAT_WORDS = BEAT_BYTES // 4
"""Elements of a beat."""

INTERLEAVE = 8
"""Results on which a lane works in turn, so that an addition is done when its sum is needed."""

LANE_BITS = 4

VECTOR_BITS = 8
"""Width of a number of vectors in a walk."""

NO_LINE = (1 << VECTOR_BITS) - 1
"""Length of a walk's line that is longer than any walk."""

COORDINATE_BITS = 42
"""Width of a signed coordinate: a row or column that may lie far outside of its image."""


class Second(enum.Enum, shape=2):
    """The second operand of a reduction."""

    NONE = 0
    """There is no second operand: SUM."""
    SHARED = 1
    """A vector is used by all lanes."""
    PRIVATE = 2
    """Each lane has a vector of its own: DOT."""


class Elementwise(enum.Enum, shape=2):
    """What an elementwise work computes."""

    ADD = 0
    MUL = 1
    SCALEADD = 2


class Padded(enum.Enum, shape=2):
    """The operand that is an image with padding."""

    NONE = 0
    FIRST = 1
    SECOND = 2


class OperandBuffer(enum.Enum, shape=1):
    """The buffers that the loader fills."""

    FIRST = 0
    SECOND = 1


@dataclass(frozen=True)
class Jobs:
    """The layouts for a configuration.

    Addresses and strides count elements of 4 bytes in the stack, modulo its size.
    """

    config: PimConfig

    @cached_property
    def word_bits(self) -> int:
        """Width of an element's address."""
        return (self.config.stack_bytes // 4 - 1).bit_length()

    @cached_property
    def k_bits(self) -> int:
        """Width of an element's place in a vector that is in a buffer, and of a count of them."""
        return (self.config.second_words).bit_length()

    @cached_property
    def nest(self) -> data.StructLayout:
        """An operand: where it begins, and its strides."""
        names = ("address", "outer1", "outer2", "vector", "channel", "row", "column")
        return data.StructLayout(dict.fromkeys(names, self.word_bits))

    @cached_property
    def result(self) -> data.StructLayout:
        """The result: where it begins, and its strides."""
        names = ("address", "outer1", "outer2", "first", "second")
        return data.StructLayout(dict.fromkeys(names, self.word_bits))

    @cached_property
    def plan(self) -> data.StructLayout:
        """How a work is cut, in logarithms where a power of two is needed."""
        return data.StructLayout(
            {
                # Elements of a vector that are in a buffer at once: 2 ** chunk, 8 or more.
                "chunk": 4,
                # First vectors a lane has in a tile: 2 ** depth, 1 to 8.
                "depth": 2,
                # Second vectors of a tile, at most: 2 ** seconds.
                "seconds": 5,
                # Second vectors that are in the buffer at once, at most: 2 ** block.
                "block": 4,
                # Places in a lane's state for each result: 2 ** levels.
                "levels": 5,
                # Whole channels in a chunk, or 0 if a channel does not fit into one.
                "channels": 16,
            }
        )

    @cached_property
    def work(self) -> data.StructLayout:
        """A work as a bank takes it."""
        return data.StructLayout(
            {
                "elementwise": 1,
                "operation": Elementwise,
                "second_kind": Second,
                "alpha": 32,
                "first": self.nest,
                "second": self.nest,
                "result": self.result,
                "channels": 16,
                "tap_rows": 16,
                "tap_columns": 24,
                "taps": 32,
                "padded": Padded,
                "image_height": 16,
                "image_width": 16,
                "pad_top": 16,
                "pad_left": 16,
                "stride": 16,
                "dilation": 16,
                # Whether the loader takes neighbouring vectors together, not neighbouring elements.
                "first_across": 1,
                "second_across": 1,
                # With ``lines``, so many first vectors, and private second ones, lie in a line, and
                # the next ones outer1 further on; what that is from a line's last vector to the
                # next line's first.
                "lines": 1,
                "line": 24,
                "first_line_wrap": self.word_bits,
                "second_line_wrap": self.word_bits,
                "result_line_wrap": self.word_bits,
                # Elementwise: the operand has the same element for all of a row, of which eight
                # copies are in the buffer, or fewer if the tile is shorter.
                "first_repeats": 1,
                "second_repeats": 1,
                "plan": self.plan,
            }
        )

    @cached_property
    def span(self) -> data.StructLayout:
        """A tensor's elements, from the lowest to the highest; not ``used``: there is none."""
        return data.StructLayout({"used": 1, "low": self.word_bits, "high": self.word_bits})

    @cached_property
    def checked(self) -> data.StructLayout:
        """What the check of a descriptor ends with.

        With a ``cause`` the rest is undefined. ``units`` are those that the work asks for, 0 if it
        names its ``banks``. ``add_only``: it needs no multipliers.
        """
        return data.StructLayout(
            {
                "cause": 4,
                "work": self.work,
                "spans": data.ArrayLayout(self.span, len(TENSORS)),
                "banks": self.config.banks,
                "units": 11,
                "add_only": 1,
                "outer1": 24,
                "outer2": 16,
                # With ``lines`` counted through all of them; outer1 is 1 then.
                "first": max(24, self.word_bits),
                "second": 24,
                "multiplications": 64,
                "additions": 64,
            }
        )

    @cached_property
    def tile(self) -> data.StructLayout:
        """A part of a work for one bank; ``end``: there is none left.

        In a work with ``lines`` it begins at vector ``first`` of line ``outer1``.
        """
        return data.StructLayout(
            {
                "end": 1,
                "outer1": 24,
                "outer2": 16,
                "first": 24,
                "first_count": 12,
                "second": 24,
                "second_count": 12,
            }
        )

    @cached_property
    def walk(self) -> data.StructLayout:
        """Elements to go over: ``length`` of each of ``vectors`` vectors.

        The first is at ``address``. A vector's next element is ``column`` further on; after the
        ``columns - tap_column`` first ones, and then after every ``columns``, it is ``row_wrap``
        further on instead, and ``channel_wrap`` if ``rows`` rows are done, too (counted from
        ``tap_row``). With ``bounded``, elements whose coordinates are outside of the image are
        zero; ``y`` and ``x`` are those of the first, and a vector's are ``vector_x`` further.

        After the ``line_left`` first vectors, and then after every ``line``, the next vector is not
        ``vector`` but ``line_wrap`` further on. Its ``y`` is ``vector_x`` further then, and the
        ``x`` of its first element is ``line_x``.
        """
        word = self.word_bits
        return data.StructLayout(
            {
                "address": word,
                "vectors": VECTOR_BITS,
                # Vectors side by side: vector i is member i mod size of group i div size.
                "group_size": LANE_BITS + 1,
                "vector": word,
                "length": self.k_bits,
                "across": 1,
                "column": word,
                "row_wrap": word,
                "channel_wrap": word,
                "tap_column": 24,
                "tap_row": 16,
                "columns": 24,
                "rows": 16,
                "bounded": 1,
                "y": signed(COORDINATE_BITS),
                "x": signed(COORDINATE_BITS),
                "vector_x": 16,
                "line": VECTOR_BITS,
                "line_left": VECTOR_BITS,
                "line_wrap": word,
                "line_x": signed(COORDINATE_BITS),
                "dilation": 16,
                "height": 16,
                "width": 16,
            }
        )

    @cached_property
    def segment(self) -> data.StructLayout:
        """Up to eight elements in one beat.

        Element i is at ``address`` + i · ``step`` and is number ``k`` + i of the vector (``member``
        of ``group``), or, with ``across``, number ``k`` of the vector ``member`` + i.
        """
        return data.StructLayout(
            {
                "address": self.word_bits,
                "step": signed(2),
                "count": 4,
                "zero": 1,
                "across": 1,
                "group": 3,
                "member": LANE_BITS,
                "k": self.k_bits,
                "last": 1,
            }
        )

    @cached_property
    def load(self) -> data.StructLayout:
        """What the loader is to bring into a half of a buffer."""
        return data.StructLayout({"buffer": OperandBuffer, "half": 1, "walk": self.walk})

    @cached_property
    def compute(self) -> data.StructLayout:
        """What is to be computed from one half of each buffer.

        ``length`` elements of each vector: those from tap ``tap`` of channel ``channel`` on, or,
        elementwise, all. ``first_count`` first vectors, ``second_count`` second ones, which are
        those from number ``second`` of the tile on.
        """
        return data.StructLayout(
            {
                # Of each operand buffer the half, and whether it is free when this is done.
                "halves": len(OperandBuffer),
                "release": len(OperandBuffer),
                "length": self.k_bits,
                "channel": 16,
                "tap": 32,
                "first_count": 12,
                "second": 12,
                "second_count": 12,
                # Of the tile's result: the first vectors' and the second vectors' number 0.
                "address": self.word_bits,
                # The first vectors up to the first line's end.
                "line_left": VECTOR_BITS,
            }
        )

    @cached_property
    def store(self) -> data.StructLayout:
        """Results to write from a frame of the result buffer.

        The walk's vector i is lane i mod ``group_size``; its element s is result number
        i div ``group_size`` + s · 2 ** ``interleave`` of the lane. With ``linear`` there is one
        vector, and its elements lie one after the other.
        """
        return data.StructLayout({"frame": 2, "linear": 1, "interleave": 2, "walk": self.walk})
