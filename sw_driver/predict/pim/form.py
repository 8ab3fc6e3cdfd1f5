"""Works as the banks take them: two operands in nested loops, cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from hw.pim.work.descriptor import ELEMENTWISE_OPCODES, Opcode
from hw.pim.work.layouts import INTERLEAVE, Second

from .walks import NO_LINE

__all__ = ["Chunk", "Form", "Nest", "Tile", "Tiles", "form_of"]

_ELEMENT_BYTES = 4
_LEAST_CHUNKS = 4
"""Chunks of a tile that are simulated, at least."""
_FEW_CHUNKS = 16
"""Chunks of a channel, at most, for which whole channels are simulated."""


class Tile(NamedTuple):
    """Part of a work for one bank: its beginning in the four loops, its extent in two."""

    outer1: int
    outer2: int
    first: int
    first_count: int
    second: int
    second_count: int


@dataclass(frozen=True, kw_only=True)
class Nest:
    """Address and strides of an operand, in elements."""

    address: int = 0
    outer1: int = 0
    outer2: int = 0
    vector: int = 0
    channel: int = 0
    row: int = 0
    column: int = 0

    def at(
        self, tile: Tile, vector: int, *, channel: int = 0, row: int = 0, column: int = 0
    ) -> int:
        """Return the address of a vector's element, in the outer loops' iteration of ``tile``."""
        return (
            self.address
            + tile.outer1 * self.outer1
            + tile.outer2 * self.outer2
            + vector * self.vector
            + channel * self.channel
            + row * self.row
            + column * self.column
        )


class Chunk(NamedTuple):
    """Part of a reduction that the buffers hold at once."""

    channel: int
    tap: int
    length: int
    complete: bool
    """True for the last chunk of the reduction."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """Work as sums of products over nested loops.

    Result (o1, o2, p, s) is the sum over channels and taps of the first operand's vector p times
    the second operand's vector s.
    """

    work: Any
    """Object with the fields of a descriptor (docs/pim-spec.md)."""
    extents: tuple[int, int, int, int]
    """Iterations of outer1 and outer2, first vectors, second vectors."""
    operands: tuple[Nest, ...]
    """First and second operand."""
    result: Nest
    """Nest of the result: its vectors are first vectors, its columns second vectors."""
    second_kind: Second
    channels: int
    tap_rows: int
    tap_columns: int
    line: int = NO_LINE
    """First vectors of a line; the next line begins one step of outer1 later."""
    followed: int | None = None
    """Chunks of each tile that are simulated, or None for all.

    Half of them are its first chunks, the others its last ones.
    """

    @property
    def plan(self) -> Any:
        """Plan by which the work is cut."""
        return self.work.plan

    @property
    def elementwise(self) -> bool:
        """True for a work without a reduction."""
        return self.work.opcode in ELEMENTWISE_OPCODES

    @property
    def padded(self) -> int | None:
        """Number of the operand that is an image with padding, if any."""
        return int(self.plan.exchanged) if self.work.opcode == Opcode.CONV2D else None

    @property
    def taps(self) -> int:
        """Elements of a vector in a channel."""
        return self.tap_rows * self.tap_columns

    @cached_property
    def products(self) -> int:
        """Elements of a reduction that are simulated; 1 without a reduction."""
        if self.followed is None:
            return self.channels * self.taps
        return sum(chunk.length for chunk in self.followed_chunks())

    @cached_property
    def chunks(self) -> int:
        """Chunks of a tile."""
        if self.plan.channels:
            return _ceiling(self.channels, self.plan.channels)
        return self.channels * self._channel_chunks

    @property
    def _channel_chunks(self) -> int:
        return _ceiling(self.taps, 1 << self.plan.chunk)

    def _chunk(self, number: int) -> Chunk:
        complete = number == self.chunks - 1
        if self.plan.channels:
            channel = number * self.plan.channels
            count = min(self.plan.channels, self.channels - channel)
            return Chunk(channel, 0, count * self.taps, complete)
        channel, place = divmod(number, self._channel_chunks)
        tap = place << self.plan.chunk
        return Chunk(channel, tap, min(1 << self.plan.chunk, self.taps - tap), complete)

    def followed_chunks(self) -> Iterator[Chunk]:
        """Return the chunks of a tile that are simulated, in order."""
        count = self.chunks if self.followed is None else self.followed
        end = self.chunks - count + count // 2
        return map(self._chunk, chain(range(count // 2), range(end, self.chunks)))

    @property
    def tile_cycles(self) -> int:
        """Approximate cycles of the simulated part of a large tile."""
        first, second = self.extents[2:]
        vectors = min(1 << self.plan.depth, _ceiling(first, INTERLEAVE))
        return vectors * min(1 << self.plan.seconds, second) * self.products

    def shortened(self, tile_cycles: int, times: int = 1) -> Form:
        """Return the form with fewer simulated chunks a tile.

        They take about ``tile_cycles``, times ``times``. If channels have few chunks, whole
        channels are simulated, so that each one's short last chunk has its share.
        """
        followed = max(_LEAST_CHUNKS, self.chunks * tile_cycles // self.tile_cycles)
        period = 1 if self.plan.channels else self._channel_chunks
        whole = _ceiling(followed, period) * period
        if period <= _FEW_CHUNKS and whole < self.chunks:
            followed = whole
        followed *= times
        return self if followed >= self.chunks else replace(self, followed=followed)


_LOOPS = {
    "o": "outer1",
    "O": "outer2",
    "p": "vector",
    "c": "channel",
    "u": "row",
    "v": "column",
}
_INDICES = {
    Opcode.SUM: ("Oopv", "", "Oop"),
    Opcode.DOT: ("Oopv", "Oopv", "Oop"),
    Opcode.MATVEC: ("pov", "ov", "po"),
    Opcode.MATMUL: ("pv", "vp", "pv"),
    Opcode.CONV2D: ("Ocop", "pcuv", "Ovop"),
} | dict.fromkeys(ELEMENTWISE_OPCODES, ("op", "op", "op"))
"""Loops over which the indices of a, of b and of the result run.

The result's p and v are first and second vectors.
"""


def form_of(work: Any) -> Form:
    """Return the form of a valid work: the driver's, or a decoded descriptor with its plan."""
    opcode = Opcode(work.opcode)
    loops = _INDICES[opcode]

    def nest(name: str, loops: str) -> Nest:
        tensor = getattr(work, name)
        strides = {_LOOPS[loop]: step for loop, step in zip(loops, tensor.strides, strict=False)}
        return Nest(address=tensor.address_bytes // _ELEMENT_BYTES, **strides)

    nests = [nest(name, loops[name != "a"]) for name in work.operands]
    result = nest("result", loops[2])
    second = {Opcode.SUM: Second.NONE, Opcode.DOT: Second.PRIVATE}.get(opcode, Second.SHARED)
    exchanged = work.plan.exchanged
    line = NO_LINE
    match opcode:
        case Opcode.SUM | Opcode.DOT:
            extents = 1, work.images, work.rows * work.columns, 1
            line = work.columns
        case Opcode.MATVEC:
            extents = work.columns, 1, work.rows, 1
        case Opcode.MATMUL:
            extents = 1, 1, work.rows, work.columns
            if exchanged:
                extents = 1, 1, work.columns, work.rows
        case Opcode.CONV2D:
            image = nests[0]
            y, x = image.outer1, image.vector
            nests[0] = replace(
                image,
                address=image.address - work.pad_top * y - work.pad_left * x,
                outer1=work.stride * y,
                vector=work.stride * x,
                row=work.dilation * y,
                column=work.dilation * x,
            )
            extents = 1, work.images, work.rows * work.columns, work.filters
            if exchanged:
                extents = work.rows, work.images, work.filters, work.columns
            else:
                line = work.columns
        case _:
            extents = work.rows, 1, work.columns, 1
    if exchanged:
        nests.reverse()
        result = replace(result, vector=result.column, column=result.vector)
    return Form(
        work=work,
        extents=extents,
        operands=tuple(nests),
        result=result,
        second_kind=second,
        channels=work.channels or 1,
        tap_rows=work.filter_height or 1,
        tap_columns=work.filter_width or work.length or 1,
        line=line,
    )


class Tiles:
    """Remaining tiles of a work: first vectors fastest, then second ones, outer1, outer2."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self._first = self._second = self._outer1 = self._outer2 = 0
        self.largest = 0
        """Products of the largest tile dealt so far."""
        self.line_cycles = 0
        """Cycles that the next tile waits because the last one ended lines."""
        self.ended = False

    @property
    def left(self) -> int:
        """Products, or elements, of the tiles that are not yet dealt."""
        outer1, outer2, first, second = self.form.extents
        if self.ended:
            return 0
        planes = outer1 * (outer2 - self._outer2) - self._outer1
        rest = planes * first * second - self._second * first
        seconds = min(1 << self.form.plan.seconds, second - self._second)
        return (rest - self._first * seconds) * self.form.products

    def skip(self, products: int, lanes: int) -> int:
        """Skip tiles of about ``products`` and return the exact number of products skipped.

        Tiles are cut as for a bank with ``lanes``. At least one tile is left.
        """
        outer1, _, first, second = self.form.extents
        before = self.left
        plane = first * second * self.form.products
        planes = max(0, products // plane - 1)
        self._outer2, self._outer1 = divmod(self._outer2 * outer1 + self._outer1 + planes, outer1)
        while before - self.left < products:
            state = self._first, self._second, self._outer1, self._outer2
            self.next(lanes)
            if self.ended:
                self._first, self._second, self._outer1, self._outer2 = state
                self.ended = False
                break
        return before - self.left

    def next(self, lanes: int) -> Tile | None:
        """Return the next tile for a bank with ``lanes``, or None at the end."""
        if self.ended:
            return None
        form = self.form
        outer1, outer2, first, second = form.extents
        limit = self._limit(lanes)
        seconds = 1 << form.plan.seconds
        line, in_line = divmod(self._first, form.line)
        tile = Tile(
            self._outer1 + line,
            self._outer2,
            in_line,
            min(limit, first - self._first),
            self._second,
            min(seconds, second - self._second),
        )
        size = tile.first_count * tile.second_count * form.products
        self.largest = max(self.largest, size)
        self._first += limit
        self.line_cycles = 0
        if in_line + limit >= form.line:
            passed = self._first // form.line - line
            self.line_cycles = 1 + (passed if self._first < first else 0)
        if self._first >= first:
            self._first = 0
            self._second += seconds
            if self._second >= second:
                self._second = 0
                self._outer1 += 1
                if self._outer1 == outer1:
                    self._outer1 = 0
                    self._outer2 += 1
                    self.ended = self._outer2 == outer2
        return tile

    def _limit(self, lanes: int) -> int:
        """Return the first vectors of the next tile for a bank with ``lanes``, at most."""
        form = self.form
        if form.elementwise:
            return 1 << form.plan.chunk
        vectors = 1 << form.plan.depth
        if form.plan.seconds >= 3:
            # A power of two: together with the second vectors they fill a lane's turns.
            needed = -(-(form.extents[2] - self._first) // lanes)
            vectors = min(vectors, 1 << needed.bit_length() - 1)
        return lanes * vectors


def _ceiling(value: int, part: int) -> int:
    return -(-value // part)
