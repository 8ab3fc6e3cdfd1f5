"""Long sums in pieces for all lanes, with the same result to the last bit.

Level k of a tree over n values (``docs/pim-spec.md``, "Reductions") has one subtree for every 2**k
consecutive values, from a multiple of 2**k on. The rest at the end, if any, is one more subtree. So
a tree over the sums of pieces of 2**k values equals the tree over all values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any

from hw.pim.config import BEAT_BYTES

from .descriptor import ELEMENT_BYTES, Opcode, StridedTensor, Work
from .planning import LEAST_LINE, sum_lanes

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["in_pieces", "split"]

_LEAST_PIECE = 8
"""Elements of the smallest piece."""
_START_CYCLES = 320
"""Cycles of a dependent work in which its lanes are idle.

They are the cycles from the previous work's end until its lanes start, and from the lanes' end
until it completes.
"""
_TILE_CYCLES = 45
"""Fewest cycles from the start of a bank's tile to the start of its next one."""
_DEAL_CYCLES = 4
"""Cycles between the dealing of two consecutive tiles."""
_BANDWIDTH = 0.5
"""Share of the memory bandwidth that all banks reach with contiguous vectors of one chunk."""
_ROWS_BANDWIDTH = 0.37
"""Share of the memory bandwidth with vectors that are rows far apart."""
_NARROWER = 0.4
"""Exponent with which bandwidth falls in the chunks of a vector.

Longer vectors lie further apart, so fewer memories serve them at the same time.
"""
_MOST_CHUNKS = 4
"""Most chunks in a piece."""
_VECTORS = 8
"""Vectors of a lane in a tile."""


def split(work: Work, config: PimConfig, scratch: Callable[[int], int]) -> list[Work]:
    """Return the works that compute ``work`` to the last bit in the fewest predicted cycles.

    They are the work itself, or its sums in pieces (the last may be short) and the sums of these.
    Many pieces are summed in pieces again. SUM, DOT and MATVEC are split if one index of the result
    has the extent 1; other works are returned unchanged.

    ``scratch`` returns the byte address of memory for a number of elements. No other tensor may
    overlap it until the last work has completed. Offer the works in their order; the pool keeps
    dependent works apart. There may be more of them than the pool holds at once. All works keep the
    ``units`` of ``work``.
    """
    if work.opcode not in (Opcode.SUM, Opcode.DOT, Opcode.MATVEC) or work.plan is not None:
        return [work]
    sums = _normal(work)
    if sums.columns != 1:
        return [work]
    _, opcode, piece = _fastest(config, Opcode(work.opcode), sums.images * sums.rows, sums.length)
    if piece >= work.length:
        return [work]
    return in_pieces(work, piece, config, scratch, opcode=opcode)


def in_pieces(
    work: Work,
    piece: int,
    config: PimConfig,
    scratch: Callable[[int], int],
    *,
    opcode: Opcode | None = None,
) -> list[Work]:
    """Return the works that compute ``work`` in pieces of ``piece`` elements, a power of two.

    The pieces of a MATVEC are MATVECs if ``opcode`` is MATVEC, else DOTs; others keep their opcode.
    """
    sums = _normal(work)
    whole, rest = divmod(sums.length, piece)
    pieces, count = whole + bool(rest), sums.images * sums.rows
    if pieces <= 1:
        return [work]
    # Place the sums of one tile side by side. A tile takes consecutive pieces, which is fastest if
    # they are whole beats; else it takes rows.
    strides = (sums.rows * pieces, pieces, 1)
    if sums.rows >= LEAST_LINE and (opcode == Opcode.MATVEC or not _in_beats(sums)):
        strides = (sums.rows, 1, count)
    partial = StridedTensor(address_bytes=scratch(count * pieces), strides=strides)
    works = []
    # The rest first. Its sums mostly lie between the other sums, so the pool runs the two works one
    # after the other.
    for first, columns, length in ((whole, 1, rest), (0, whole, piece)):
        if not columns * length:
            continue
        part = replace(sums, columns=columns, length=length)
        for name in sums.operands:
            tensor: StridedTensor = getattr(sums, name)
            n, i, _, k = tensor.strides
            moved = StridedTensor(
                address_bytes=tensor.address_bytes + ELEMENT_BYTES * first * piece * k,
                strides=(n, i, piece * k, k),
            )
            part = replace(part, **{name: moved})
        at = partial.address_bytes + ELEMENT_BYTES * first * strides[2]
        part = replace(part, result=replace(partial, address_bytes=at))
        works.append(_matvec(part) if opcode == Opcode.MATVEC else part)
    n, i, j = strides
    last = replace(
        sums,
        opcode=Opcode.SUM,
        length=pieces,
        b=StridedTensor(),
        a=replace(partial, strides=(n, i, 0, j)),
    )
    return [*works, *split(last, config, scratch)]


def _normal(work: Work) -> Work:
    """Return a DOT or SUM with the same sums, the most rows and the fewest columns."""
    if work.opcode == Opcode.MATVEC:
        (i, j, k), (along, element) = _strides(work.a, 3), _strides(work.b, 2)
        row, column = _strides(work.result, 2)
        return replace(
            work,
            opcode=Opcode.DOT,
            images=1,
            a=replace(work.a, strides=(0, i, j, k)),
            b=replace(work.b, strides=(0, 0, along, element)),
            result=replace(work.result, strides=(0, row, column)),
        )
    names = ("images", "rows", "columns")
    extents = [getattr(work, name) for name in names]
    columns, images, rows = sorted(range(3), key=lambda index: extents[index])
    order = images, rows, columns
    changes: dict[str, Any] = {name: extents[i] for name, i in zip(names, order, strict=True)}
    for name in (*work.operands, "result"):
        tensor: StridedTensor = getattr(work, name)
        n, i, j, *k = _strides(tensor, 3 if name == "result" else 4)
        changes[name] = replace(tensor, strides=(*((n, i, j)[index] for index in order), *k))
    return replace(work, **changes)


def _in_beats(work: Work) -> bool:
    """Return True if the rows are dense and all start at a memory beat."""
    tensors: list[StridedTensor] = [getattr(work, name) for name in work.operands]
    return all(
        tensor.address_bytes % BEAT_BYTES == 0
        and tensor.strides[3] == 1
        and not any(stride * ELEMENT_BYTES % BEAT_BYTES for stride in tensor.strides[:2])
        for tensor in tensors
    )


def _matvec(work: Work) -> Work:
    """Return the one-image DOT of :func:`_normal` as a MATVEC again."""
    strides = {"a": work.a.strides[1:], "b": work.b.strides[2:], "result": work.result.strides[1:]}
    changes: dict[str, Any] = {
        name: replace(getattr(work, name), strides=steps) for name, steps in strides.items()
    }
    return replace(work, opcode=Opcode.MATVEC, images=0, **changes)


def _strides(tensor: StridedTensor, count: int) -> tuple[int, ...]:
    return (*tensor.strides, *[0] * count)[:count]


@lru_cache(maxsize=1 << 12)
def _fastest(
    config: PimConfig, opcode: Opcode, sums: int, length: int
) -> tuple[float, Opcode, int]:
    """Return cycles, opcode and piece of the fastest ``sums`` sums of ``length`` elements."""
    ways = [(_cycles(config, opcode, sums, 1, length), opcode, length)]
    for way in {opcode, Opcode.DOT} if opcode == Opcode.MATVEC else {opcode}:
        piece = _LEAST_PIECE
        while piece < length and piece <= _MOST_CHUNKS * _chunk(config, way):
            whole, rest = divmod(length, piece)
            cycles = _cycles(config, way, sums, whole, piece)
            if rest:
                cycles += _cycles(config, way, sums, 1, rest)
            cycles += _fastest(config, Opcode.SUM, sums, whole + bool(rest))[0]
            ways.append((cycles, way, piece))
            piece *= 2
    return min(ways)


def _chunk(config: PimConfig, opcode: Opcode) -> int:
    """Return the elements of a vector that one chunk holds if every lane has all its vectors."""
    words = config.first_words
    if opcode == Opcode.DOT:
        words = min(words, config.second_words)
    return words // (_VECTORS * _VECTORS)


def _cycles(config: PimConfig, opcode: Opcode, sums: int, pieces: int, length: int) -> float:
    """Predict the cycles of ``sums`` sums, in ``pieces`` pieces of ``length`` elements each."""
    lanes = sum_lanes(opcode, config) / config.banks
    room = _VECTORS * lanes
    vectors = sums if opcode == Opcode.MATVEC else sums * pieces
    tiles = ceil(vectors / room) * (pieces if opcode == Opcode.MATVEC else 1)
    streams = {Opcode.SUM: 1.0, Opcode.DOT: 2.0, Opcode.MATVEC: 1 + 1 / min(sums, room)}[opcode]
    elements = streams * sums * pieces * length
    chunks = max(1.0, length / _chunk(config, opcode))
    if opcode == Opcode.MATVEC or (pieces == 1 and chunks > 1):
        bandwidth = _ROWS_BANDWIDTH
    else:
        bandwidth = _BANDWIDTH / chunks**_NARROWER
    memory = ELEMENT_BYTES * elements / (BEAT_BYTES * config.banks * bandwidth)
    dealing = _DEAL_CYCLES * min(tiles, config.banks)
    tile = max(_VECTORS * length, _TILE_CYCLES, dealing)
    return _START_CYCLES + dealing + max(ceil(tiles / config.banks) * tile, memory)
