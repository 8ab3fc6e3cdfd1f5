"""Plan of a work for a pool: its tiling, and the number of units that it can use.

The pool refuses a plan that does not fit its buffers. All other plans give the same result and
differ only in time. ``docs/pim.md``, "Tiles", gives the reasons for the choices here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from hw.pim.work.descriptor import ELEMENTWISE_OPCODES

from .descriptor import Opcode, StridedTensor, TilingPlan, Work

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["LEAST_LINE", "planned", "sum_lanes"]

_LEAST_CHUNK = 3
_ELEMENTWISE_CHUNKS = (6, 9)
_MOST_DEPTH = 3
_MOST_SECONDS = 10
_MOST_BLOCK = 6
_LANES = 3
"""Base-2 logarithm of the lanes that tiles are cut for, and of a lane's interleaved results."""
_LEAST_TILES, _TILES = 4, 16
"""Minimum and target tiles of a work for each bank, so that banks end at about the same time."""
_BUFFER_SHARE = 5
"""Base-2 logarithm of the chunks that fit in a buffer: four vectors for each of eight lanes.

A chunk is half as large if there are more first vectors, and few shared second vectors. The lanes
then need eight first vectors each to fill their turns.
"""
_TURNED = (Opcode.SUM, Opcode.DOT)
LEAST_LINE = 8
"""Fewest results that count as a long line."""
_SHORT_ROW = 4
"""Length of a row of taps from which loading a vector's elements together pays off."""


def planned(work: Work, config: PimConfig) -> Work:
    """Return ``work`` with a plan for a pool of ``config``, and no more units than it can use.

    A work that already has a plan keeps its plan and the order of its indices. A work that the pool
    will refuse is returned unchanged.
    """
    if work.opcode not in list(Opcode):
        return work
    sizes = (size for name in (*work.operands, "result") for size in work.extents(name))
    if min(sizes) < 1:
        return work
    if work.opcode in _TURNED and work.plan is None:
        work = _turned(work)
    # The pool refuses more units than it has.
    most = _groups(work) * _group_units(work) if work.units <= config.units else work.units
    return replace(work, plan=work.plan or _plan_of(work, config), units=min(work.units, most))


def _turned(work: Work) -> Work:
    """Return ``work``, a SUM or DOT, with the result's indices in a faster order.

    The columns are the index with the nearest results, if it is a long line; else the longest
    index. The images are the shorter of the other two. Short lines cost the pool time, a tile ends
    with an image, and neighbouring results are written together.
    """
    names = ("images", "rows", "columns")
    extents = [getattr(work, name) for name in names]
    apart = [abs(stride) for stride in (*work.result.strides, 0, 0, 0)[:3]]

    def fit(index: int) -> tuple[bool, int]:
        long = extents[index] >= LEAST_LINE
        return long, -apart[index] if long else extents[index]

    columns = max(range(3), key=fit)
    order = sorted(range(3), key=lambda index: (index == columns, extents[index]))
    changes: dict[str, Any] = {name: extents[i] for name, i in zip(names, order, strict=True)}
    for name in (*work.operands, "result"):
        tensor: StridedTensor = getattr(work, name)
        strides = (*tensor.strides, *[0] * 3)
        turned = (*(strides[index] for index in order), *tensor.strides[3:])
        changes[name] = replace(tensor, strides=turned)
    return replace(work, **changes)


def sum_lanes(opcode: int, config: PimConfig) -> int:
    """Return the number of lanes, in all banks, that work on a reduction."""
    placement = config.placement
    if opcode == Opcode.SUM:
        return sum(placement.adders)
    return sum(map(min, placement.multipliers, placement.adders))


def _group_units(work: Work) -> int:
    """Return the units in one of the work's groups (``docs/pim-spec.md``, "Groups")."""
    if work.opcode == Opcode.CONV2D:
        taps = work.filter_height * work.filter_width
        # A filter of one tap has no tree, but needs an adder to sum several channels.
        return taps + max(taps - 1, int(work.channels > 1))
    return 1 if work.opcode in (Opcode.ADD, Opcode.MUL, Opcode.SUM) else 2


def _groups(work: Work) -> int:
    """Return the number of groups that the work can use."""
    one_a_result = (*ELEMENTWISE_OPCODES, Opcode.CONV2D)
    return work.results * (1 if work.opcode in one_a_result else work.length)


@dataclass(frozen=True, kw_only=True)
class _Vectors:
    """Vectors of the first or the second operand of a reduction; strides are in elements."""

    count: int
    vector: int
    """Stride from vector to vector."""
    element: int
    """Stride from element to element of a vector."""

    def across(self, row: int) -> bool:
        """Return True if neighbouring vectors load faster together than neighbouring elements."""
        return abs(self.vector) <= 1 and (abs(self.element) > 1 or row < _SHORT_ROW)


def _ceiling(value: int, part: int) -> int:
    return -(-value // part)


def _logarithm(value: int) -> int:
    """Return the logarithm of ``value`` to base 2, rounded down."""
    return value.bit_length() - 1


def _plan_of(work: Work, config: PimConfig) -> TilingPlan:
    """Return a plan for a valid work on a pool of ``config``; its indices keep their order."""
    workers = work.banks.bit_count() or config.banks
    if work.opcode in ELEMENTWISE_OPCODES:
        least, most = _ELEMENTWISE_CHUNKS
        chunk = min(most, _logarithm(config.second_words))
        while chunk > least and (
            work.rows * _ceiling(work.columns, 1 << chunk) < _LEAST_TILES * workers
        ):
            chunk -= 1
        return TilingPlan(chunk=chunk)
    # Missing strides are zero.
    a, b = ((*tensor.strides, 0, 0, 0, 0) for tensor in (work.a, work.b))
    outer, channels, row, taps = 1, 1, work.length, work.length
    exchanged = False
    match Opcode(work.opcode):
        case Opcode.SUM | Opcode.DOT:
            outer = work.images
            first = _Vectors(count=work.rows * work.columns, vector=a[2], element=a[3])
            second = _Vectors(count=1, vector=2, element=0)
            if work.opcode == Opcode.DOT:
                second = replace(second, vector=b[2], element=b[3])
        case Opcode.MATVEC:
            outer = work.columns
            first = _Vectors(count=work.rows, vector=a[0], element=a[2])
            second = _Vectors(count=1, vector=0, element=b[1])
        case Opcode.MATMUL:
            first = _Vectors(count=work.rows, vector=a[0], element=a[1])
            second = _Vectors(count=work.columns, vector=b[1], element=b[0])
            exchanged = work.columns >= work.rows
        case _:
            channels, row = work.channels, work.filter_width
            taps = work.filter_height * row
            steps = {"vector": work.stride * a[3], "element": work.dilation * a[3]}
            places = work.rows * work.columns
            outer = work.images
            first = _Vectors(count=places, **steps)
            second = _Vectors(count=work.filters, vector=b[0], element=b[3])
            # Places of the result continue from row to row, but filters start anew in every row. So
            # places leave fewer lanes idle, if there are enough of them.
            exchanged = 2 * places < work.filters
            if exchanged:
                outer *= work.rows
                first = _Vectors(count=work.columns, **steps)
    if exchanged:
        first, second = second, first
    plan = _cut(
        config,
        private=work.opcode == Opcode.DOT,
        lanes=sum_lanes(work.opcode, config) / config.banks,
        outer=outer,
        first=first.count,
        second=second.count,
        channels=channels,
        taps=taps,
        workers=workers,
    )
    return replace(
        plan,
        exchanged=int(exchanged),
        first_across=int(first.across(row)),
        second_across=int(second.across(row)),
    )


def _cut(
    config: PimConfig,
    *,
    private: bool,
    lanes: float,
    outer: int,
    first: int,
    second: int,
    channels: int,
    taps: int,
    workers: int,
) -> TilingPlan:
    """Return the sizes of a reduction's chunks and tiles; ``lanes`` is the mean of the banks."""
    words = min(config.first_words, config.second_words) if private else config.first_words
    # A lane has eight turns: one for every pair of its 2 ** depth first vectors and a second
    # vector. The second vectors are best a multiple of 8 / 2 ** depth; up to an eighth may be
    # missing.
    filling = next(d for d in range(1, _MOST_DEPTH + 1) if 8 * (-second % (8 >> d)) <= second)
    share = _BUFFER_SHARE
    if filling == _MOST_DEPTH and first > 1 << _BUFFER_SHARE and second > 1:
        share += 1
    chunk = (min(channels * taps, 1 << _logarithm(words) - share) - 1).bit_length()
    most = ((first - 1) >> _LANES).bit_length()
    if second == 1:
        most = min(_MOST_DEPTH, (ceil(first / lanes) - 1).bit_length())
        # Only first vectors fill a lane's turns, and all of them must fit in the buffer.
        chunk = min(chunk, _logarithm(words) - _LANES - most)
    chunk = max(_LEAST_CHUNK, chunk)
    # The fewest channels in a chunk that need no more chunks. The next tile is loaded while the
    # last chunk is computed, so that chunk should not be short.
    whole = (1 << chunk) // taps
    together = _ceiling(channels, _ceiling(channels, whole)) if whole else 0

    places = _logarithm(config.state_words) - ((taps - 1) >> chunk).bit_length().bit_length()
    depth = min(_MOST_DEPTH, _logarithm(words) - _LANES - chunk, places, most)
    if second == 1:
        # A tile with fewer vectors takes as long, so take the fewest that need no more rounds.
        def turns(depth: int) -> int:
            return _ceiling(outer * ceil(first / (lanes * 2**depth)), workers)

        depth = min(range(depth + 1), key=turns)
    seconds = min(_MOST_SECONDS, places - depth, (second - 1).bit_length())
    # With fewer first vectors a tile is shorter only if second vectors fill the lanes' turns.
    fills = seconds >= _LANES
    enough, least = (_TILES, _LEAST_TILES) if fills else (1, 1)
    while second > 1:
        tiles = outer * _ceiling(first, 8 << depth) * _ceiling(second, 1 << seconds)
        if tiles >= enough * workers:
            break
        # Equal numbers of first and second vectors, if possible, need the fewest loads.
        if seconds > depth + _LANES:
            seconds -= 1
        elif depth > filling:
            depth -= 1
        elif seconds > _LANES:
            seconds -= 1
        elif depth > 0 and tiles < least * workers:
            depth -= 1
        else:
            break
    block = min(seconds, _logarithm(config.second_words) - chunk, _MOST_BLOCK)
    return TilingPlan(chunk=chunk, depth=depth, seconds=seconds, block=block, channels=together)
