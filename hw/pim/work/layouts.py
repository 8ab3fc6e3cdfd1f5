"""Layouts between the parts of the pool: works in a bank's form, tiles, jobs."""

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
"""Elements in a beat."""

INTERLEAVE = 8
"""Results that a lane works on in turn, so that a sum is ready for its next addition."""

LANE_BITS = 4

VECTOR_BITS = 8
"""Width of a count of vectors in a walk."""

NO_LINE = (1 << VECTOR_BITS) - 1
"""Length of a line that never ends: longer than any walk."""

COORDINATE_BITS = 42
"""Width of a signed coordinate: a row or column that may lie far outside its image."""


class Second(enum.Enum, shape=2):
    """Kind of a reduction's second operand."""

    NONE = 0
    """No second operand: SUM."""
    SHARED = 1
    """One vector for all lanes."""
    PRIVATE = 2
    """A vector for each lane: DOT."""


class Elementwise(enum.Enum, shape=2):
    """Operation of an elementwise work."""

    ADD = 0
    MUL = 1
    SCALEADD = 2


class Padded(enum.Enum, shape=2):
    """Operand that is an image with padding."""

    NONE = 0
    FIRST = 1
    SECOND = 2


class OperandBuffer(enum.Enum, shape=1):
    """Buffers that the loader fills."""

    FIRST = 0
    SECOND = 1


@dataclass(frozen=True)
class Jobs:
    """Layouts for a configuration.

    Addresses and strides count elements of 4 bytes in the stack, modulo its size.
    """

    config: PimConfig

    @cached_property
    def word_bits(self) -> int:
        """Width of an element's address, in bits."""
        return (self.config.stack_bytes // 4 - 1).bit_length()

    @cached_property
    def k_bits(self) -> int:
        """Width of an element's number, and of a count of elements, in a buffered vector."""
        return (self.config.second_words).bit_length()

    @cached_property
    def nest(self) -> data.StructLayout:
        """Layout of an operand: its first address and its strides."""
        names = ("address", "outer1", "outer2", "vector", "channel", "row", "column")
        return data.StructLayout(dict.fromkeys(names, self.word_bits))

    @cached_property
    def result(self) -> data.StructLayout:
        """Layout of the result: its first address and its strides."""
        names = ("address", "outer1", "outer2", "first", "second")
        return data.StructLayout(dict.fromkeys(names, self.word_bits))

    @cached_property
    def plan(self) -> data.StructLayout:
        """Layout of a plan, which says how a work is cut; powers of two are logarithms."""
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
        """Layout of a work for the banks."""
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
                # The loader takes neighbouring vectors together instead of neighbouring elements.
                "first_across": 1,
                "second_across": 1,
                # With ``lines``: ``line`` first vectors, and private second ones, lie in a line.
                # The next line is outer1 further on. A wrap is the distance from a line's last
                # vector to the next line's first.
                "lines": 1,
                "line": 24,
                "first_line_wrap": self.word_bits,
                "second_line_wrap": self.word_bits,
                "result_line_wrap": self.word_bits,
                # Elementwise: the operand has one element for a whole row. The buffer has eight
                # copies of it, or fewer if the tile is shorter.
                "first_repeats": 1,
                "second_repeats": 1,
                "plan": self.plan,
            }
        )

    @cached_property
    def span(self) -> data.StructLayout:
        """Layout of a tensor's lowest and highest element; without ``used`` there is no tensor."""
        return data.StructLayout({"used": 1, "low": self.word_bits, "high": self.word_bits})

    @cached_property
    def checked(self) -> data.StructLayout:
        """Layout of a checked descriptor.

        With a ``cause``, the rest is undefined. ``units`` is the number that the work requests, 0
        if it names its ``banks``. With ``add_only`` it needs no multipliers.
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
                # With ``lines``: first vectors of all lines; outer1 is 1 then.
                "first": max(24, self.word_bits),
                "second": 24,
                "multiplications": 64,
                "additions": 64,
            }
        )

    @cached_property
    def tile(self) -> data.StructLayout:
        """Layout of a tile, a part of a work for one bank; with ``end`` there is none left.

        In a work with ``lines``, a tile begins at vector ``first`` of line ``outer1``.
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
        """Layout of a walk over ``length`` elements of each of ``vectors`` vectors.

        The first element is at ``address``. A vector's next element is ``column`` further on. After
        the ``columns - tap_column`` first elements, and then after every ``columns``, the distance
        is ``row_wrap`` instead. If ``rows`` rows are done too (counted from ``tap_row``), it is
        ``channel_wrap``. With ``bounded``, elements with coordinates outside the image are zero.
        ``y`` and ``x`` are the coordinates of the first element; they grow by ``vector_x`` per
        vector.

        After the ``line_left`` first vectors, and then after every ``line``, the next vector is
        ``line_wrap`` instead of ``vector`` further on. Then its ``y`` is ``vector_x`` further, and
        the ``x`` of its first element is ``line_x``.
        """
        word = self.word_bits
        return data.StructLayout(
            {
                "address": word,
                "vectors": VECTOR_BITS,
                # Vectors in a group: vector i is member i mod size of group i div size.
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
        """Layout of a segment: up to eight elements in one beat.

        Element i is at ``address`` + i · ``step``. It is number ``k`` + i of vector ``member`` of
        ``group``, or, with ``across``, number ``k`` of vector ``member`` + i.
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
        """Layout of a load: a walk that the loader puts into a half of a buffer."""
        return data.StructLayout({"buffer": OperandBuffer, "half": 1, "walk": self.walk})

    @cached_property
    def compute(self) -> data.StructLayout:
        """Layout of a job: a computation on one half of each buffer.

        It takes ``length`` elements of each vector: those from tap ``tap`` of channel ``channel``
        on, or, elementwise, all. It has ``first_count`` first vectors, and ``second_count`` second
        vectors from number ``second`` of the tile on.
        """
        return data.StructLayout(
            {
                # For each operand buffer: the half, and whether the job frees it.
                "halves": len(OperandBuffer),
                "release": len(OperandBuffer),
                "length": self.k_bits,
                "channel": 16,
                "tap": 32,
                "first_count": 12,
                "second": 12,
                "second_count": 12,
                # Address of the tile's result for first vector 0 and second vector 0.
                "address": self.word_bits,
                # First vectors up to the end of the first line.
                "line_left": VECTOR_BITS,
            }
        )

    @cached_property
    def store(self) -> data.StructLayout:
        """Layout of a store: results to write from a frame of the result buffer.

        The walk's vector i is lane i mod ``group_size``. Its element s is result number
        i div ``group_size`` + s · 2 ** ``interleave`` of the lane. With ``linear`` there is one
        vector, and its elements are contiguous.
        """
        return data.StructLayout({"frame": 2, "linear": 1, "interleave": 2, "walk": self.walk})
