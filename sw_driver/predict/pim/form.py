"""A work as the banks take it: two operands in nested loops, and how it is cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from golden.pim.descriptor import ELEMENT_BYTES, ELEMENTWISE, Descriptor, Opcode, Plan, Tensor
from hw.pim.work.layouts import INTERLEAVE, Second

from .walks import NO_LINE

__all__ = ["Chunk", "Form", "Nest", "form_of"]

_LEAST_CHUNKS = 4
"""Of a tile that are followed."""
_FEW_CHUNKS = 16
"""Of a channel, so that whole channels are followed."""


@dataclass(frozen=True, kw_only=True)
class Nest:
    """Where an operand begins and its strides, in elements."""

    address: int = 0
    outer1: int = 0
    outer2: int = 0
    vector: int = 0
    channel: int = 0
    row: int = 0
    column: int = 0


class Chunk(NamedTuple):
    """What is in the buffers at once of a reduction."""

    channel: int
    tap: int
    length: int
    complete: bool
    """It is the last one."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A work: result (o1, o2, p, s) is the sum over channels and taps of ``first`` of vector p
    times ``second`` of vector s."""

    opcode: Opcode
    extents: tuple[int, int, int, int]
    """outer1, outer2, first vectors, second vectors."""
    operands: tuple[Nest, ...]
    """First, second and third."""
    result: Nest
    """Its vectors are first vectors, its columns second ones."""
    second_kind: Second = Second.NONE
    channels: int = 1
    tap_rows: int = 1
    tap_columns: int = 1
    padded: int | None = None
    """The operand that is an image with padding."""
    height: int = 0
    width: int = 0
    pad_top: int = 0
    pad_left: int = 0
    stride: int = 0
    dilation: int = 0
    across: tuple[bool, bool] = (False, False)
    line: int = NO_LINE
    """First vectors of a line; the next line is outer1 further on."""
    plan: Plan
    followed: int | None = None
    """Chunks of each tile that are followed, half of them from its beginning on, the others to its
    end; None: all."""

    @property
    def elementwise(self) -> bool:
        """Whether there is no reduction."""
        return self.opcode in ELEMENTWISE

    @cached_property
    def products(self) -> int:
        """Elements of a reduction that are followed; 1 if there is none."""
        if self.followed is None:
            return self.channels * self.taps
        return sum(each.length for each in self.followed_chunks())

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
        """The chunks of a tile, in order, that are followed."""
        count = self.chunks if self.followed is None else self.followed
        end = self.chunks - count + count // 2
        return map(self._chunk, chain(range(count // 2), range(end, self.chunks)))

    @property
    def tile_cycles(self) -> int:
        """About as long a large tile takes, as far as it is followed."""
        first, second = self.extents[2:]
        vectors = min(1 << self.plan.depth, _ceiling(first, INTERLEAVE))
        return vectors * min(1 << self.plan.seconds, second) * self.products

    def shortened(self, tile_cycles: int, times: int = 1) -> Form:
        """The same with as many chunks of a tile followed as take about ``tile_cycles``, or
        ``times`` as many. Of several channels of few chunks these are whole ones, so that the last
        chunk, which is a short one, has its share."""
        followed = max(_LEAST_CHUNKS, self.chunks * tile_cycles // self.tile_cycles)
        period = 1 if self.plan.channels else self._channel_chunks
        whole = _ceiling(followed, period) * period
        if period <= _FEW_CHUNKS and whole < self.chunks:
            followed = whole
        followed *= times
        return self if followed >= self.chunks else replace(self, followed=followed)

    @property
    def taps(self) -> int:
        """Elements of a vector in a channel."""
        return self.tap_rows * self.tap_columns


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
} | dict.fromkeys(ELEMENTWISE, ("op", "op", "op"))
"""Over which loop each index of a, of b (and c) and of the result runs; the result's p and v are
first and second vectors."""


def form_of(work: Descriptor) -> Form:
    """The form of a good work."""
    opcode = Opcode(work.opcode)
    loops = _INDICES[opcode]

    def nest(name: str, loops: str) -> Nest:
        tensor: Tensor = getattr(work, name)
        strides = {_LOOPS[each]: step for each, step in zip(loops, tensor.strides, strict=False)}
        return Nest(address=tensor.address_bytes // ELEMENT_BYTES, **strides)

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
        opcode=opcode,
        extents=extents,
        operands=tuple(nests),
        result=result,
        second_kind=second,
        channels=work.channels or 1,
        tap_rows=work.filter_height or 1,
        tap_columns=work.filter_width or work.length or 1,
        padded=int(exchanged) if opcode == Opcode.CONV2D else None,
        height=work.height,
        width=work.width,
        pad_top=work.pad_top,
        pad_left=work.pad_left,
        stride=work.stride,
        dilation=work.dilation,
        across=work.plan.across,
        line=line,
        plan=work.plan,
    )


def _ceiling(value: int, part: int) -> int:
    return -(-value // part)
