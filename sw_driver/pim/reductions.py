"""Long sums in pieces, so that all lanes work on them, with the same result to the last bit.

A tree over n values (``docs/pim-spec.md``, "Reductions") has, at its level k, the trees of the
consecutive 2**k values that start at multiples of 2**k, and of the rest at the end, if any. So
pieces of 2**k values are reduced one by one, and a tree over their sums is the tree over all.

Two ways to share pieces out to banks: those that lie one after the other, so that each bank's loads
go from vault to vault, or, for the longest sums, those of one vault, so that banks do not meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from hw.pim.config import BEAT_BYTES, STRIPE_BYTES

from .descriptor import ELEMENT_BYTES, Opcode, Tensor, Work
from .planning import LEAST_LINE, plan_of, sum_lanes

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["in_pieces", "in_turns", "split"]

_LEAST_PIECE = 8
"""Elements of the smallest piece."""
_START_CYCLES = 320
"""From the end of the work that it waits for until its lanes are at work, and from their end until
it completes, together."""
_TILE_CYCLES = 45
"""Between the beginnings of a bank's tiles, at least."""
_DEAL_CYCLES = 4
"""From the dealing of a tile to that of the next one."""
_BANDWIDTH = 0.5
"""Of the memories' bandwidth, what all banks together reach with vectors of a chunk, one after the
other."""
_ROWS_BANDWIDTH = 0.37
"""The same with vectors that are rows, far from each other."""
_NARROWER = 0.4
"""Its power of a vector's chunks: those of longer vectors are further apart, in fewer memories."""
_MOST_CHUNKS = 4
"""Of a piece."""
_VECTORS = 8
"""Of a lane in a tile."""
_STRIPE = STRIPE_BYTES // ELEMENT_BYTES
"""Elements of a vault that follow each other, and of a piece if a bank's are those of one vault."""
_ALONE_START_CYCLES = 620
"""Besides the tiles of a work whose banks have a vault each: with the load of the first ones."""
_MOST_TURNS = 1 << 15
"""So that sizes fit into a work."""
_ALONE_WAIT_CYCLES = 80
"""In which such a bank, with an operand of a tile, waits for buffers and its vault's answers."""


def split(work: Work, config: PimConfig, scratch: Callable[[int], int]) -> list[Work]:
    """The works that compute ``work``, to the last bit, as fast as is predicted for a pool of
    ``config``: itself, or its sums in pieces, a short last one if there is one, and the sums of
    these, again in pieces if they are many.

    SUM, DOT and MATVEC are split if one index of the result has the extent 1; other works are
    returned as they are. ``scratch`` gives the byte address of a place for so many elements, which
    no other tensor may meet until the last of the works has completed. The works are offered in
    their order; the pool keeps apart what depends on each other. They may be more than the pool
    holds at once. A work's ``units`` are those that its share of the sums is worth; none if all
    that are offered.
    """
    if work.opcode not in (Opcode.SUM, Opcode.DOT, Opcode.MATVEC) or work.plan is not None:
        return [work]
    sums = _normal(work)
    if sums.columns != 1:
        return [work]
    cycles, opcode, piece = _fastest(
        config, Opcode(work.opcode), sums.images * sums.rows, sums.length
    )
    alone, vectors = _turns(sums, config)
    if alone < cycles:
        return in_turns(sums, vectors, config, scratch)
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
    """The same with pieces of ``piece`` elements, a power of two, for the first of the works; a
    MATVEC as one of these, or as DOT, if ``opcode`` says so."""
    sums = _normal(work)
    whole, rest = divmod(sums.length, piece)
    pieces, count = whole + bool(rest), sums.images * sums.rows
    if pieces <= 1:
        return [work]
    # The sums of a tile side by side: of pieces that lie one after the other, which is fastest if
    # they are whole beats, or of rows.
    strides = (sums.rows * pieces, pieces, 1)
    if sums.rows >= LEAST_LINE and (opcode == Opcode.MATVEC or not _in_beats(sums)):
        strides = (sums.rows, 1, count)
    partial = Tensor(address_bytes=scratch(count * pieces), strides=strides)
    works = []
    # The rest first: as its sums mostly lie between the others, the two follow each other.
    for first, columns, length in ((whole, 1, rest), (0, whole, piece)):
        if not columns * length:
            continue
        part = replace(sums, columns=columns, length=length)
        for name in sums.operands:
            tensor: Tensor = getattr(sums, name)
            n, i, _, k = tensor.strides
            moved = Tensor(
                address_bytes=tensor.address_bytes + ELEMENT_BYTES * first * piece * k,
                strides=(n, i, piece * k, k),
            )
            part = replace(part, **{name: moved})
        at = partial.address_bytes + ELEMENT_BYTES * first * strides[2]
        part = replace(part, result=replace(partial, address_bytes=at))
        works.append(_matvec(part) if opcode == Opcode.MATVEC else part)
    n, i, j = strides
    last = replace(
        sums, opcode=Opcode.SUM, length=pieces, b=Tensor(), a=replace(partial, strides=(n, i, 0, j))
    )
    return [*works, *split(last, config, scratch)]


def in_turns(
    work: Work, vectors: int, config: PimConfig, scratch: Callable[[int], int]
) -> list[Work]:
    """The same for one sum over consecutive elements, of at least ``vectors`` turns; a turn is a
    stripe of each vault. First come the sums of the stripes of as many turns as are whole tiles of
    ``vectors`` stripes of one vault, those of the turns that are left, and that of the tail; then
    the sums of turns, and their sum."""
    total = _normal(work)
    banks = config.striped_banks
    turn = banks * _STRIPE
    turns, tail = divmod(total.length, turn)
    tiles = _tiles(turns, vectors)
    whole, count = tiles * vectors, turns + bool(tail)
    rest = turns - whole
    of_turns, of_stripes = scratch(count), scratch(turns * banks)
    of_rest = of_stripes + ELEMENT_BYTES * whole * banks

    def part(first: int, apart: int, result: Tensor, **sizes: int) -> Work:
        """Sums from element ``first`` on: of images that are a stripe further on each, and of
        columns so many elements ``apart``."""
        operands: dict[str, Any] = {
            name: _at(getattr(total, name).address_bytes, first, _STRIPE, 0, apart, 1)
            for name in total.operands
        }
        return replace(total, **operands, result=result, **sizes)

    def summed(a: Tensor, result: Tensor, **sizes: int) -> Work:
        return replace(total, opcode=Opcode.SUM, **sizes, a=a, b=Tensor(), result=result)

    stripes = part(
        0,
        tiles * turn,
        _at(of_stripes, 0, vectors, 0, 1),
        images=tiles * banks,
        columns=vectors,
        length=_STRIPE,
    )
    sums_of_turns = summed(
        _at(of_stripes, 0, 0, banks * vectors, 1, vectors),
        _at(of_turns, 0, 0, 1, tiles),
        rows=tiles,
        columns=vectors,
        length=banks,
    )
    # With their indices as they are: a tile ends with an image.
    first, second = (
        [replace(each, plan=plan_of(each, config))] for each in (stripes, sums_of_turns)
    )
    if rest:
        result = _at(of_rest, 0, 0, 0, 1)
        first.append(part(whole * turn, _STRIPE, result, columns=rest * banks, length=_STRIPE))
        a, result = _at(of_rest, 0, 0, 0, banks, 1), _at(of_turns, whole, 0, 0, 1)
        second.append(summed(a, result, columns=rest, length=banks))
    if tail:
        result = _at(of_turns, turns, 0, 0, 0)
        first += split(part(turns * turn, 0, result, length=tail), config, scratch)
    last = summed(_at(of_turns, 0, 0, 0, 0, 1), total.result, length=count)
    return [*first, *second, *split(last, config, scratch)]


def _tiles(turns: int, vectors: int) -> int:
    """A bank's tiles: an odd number, so that a tile's stripes, so many turns from each other, are
    not in the same layers of their vault."""
    return (turns // vectors - 1) | 1


def _at(address_bytes: int, first: int, *strides: int) -> Tensor:
    """From element ``first`` of what is at an address on."""
    return Tensor(address_bytes=address_bytes + ELEMENT_BYTES * first, strides=strides)


def _normal(work: Work) -> Work:
    """A DOT or SUM with the same sums, which has the most rows and the fewest columns."""
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
        tensor: Tensor = getattr(work, name)
        n, i, j, *k = _strides(tensor, 3 if name == "result" else 4)
        changes[name] = replace(tensor, strides=(*((n, i, j)[index] for index in order), *k))
    return replace(work, **changes)


def _in_beats(work: Work) -> bool:
    """Whether rows of dense elements begin with a beat of memory."""
    tensors: list[Tensor] = [getattr(work, name) for name in work.operands]
    return all(
        tensor.address_bytes % BEAT_BYTES == 0
        and tensor.strides[3] == 1
        and not any(stride * ELEMENT_BYTES % BEAT_BYTES for stride in tensor.strides[:2])
        for tensor in tensors
    )


def _matvec(work: Work) -> Work:
    """The DOT of :func:`_normal`, of one image, as a MATVEC again."""
    strides = {"a": work.a.strides[1:], "b": work.b.strides[2:], "result": work.result.strides[1:]}
    changes: dict[str, Any] = {
        name: replace(getattr(work, name), strides=each) for name, each in strides.items()
    }
    return replace(work, opcode=Opcode.MATVEC, images=0, **changes)


def _strides(tensor: Tensor, count: int) -> tuple[int, ...]:
    return (*tensor.strides, *[0] * count)[:count]


def _turns(sums: Work, config: PimConfig) -> tuple[float, int]:
    """The cycles of ``sums`` with a vault for each bank, and of how many stripes tiles are best;
    none if there is no way: it must be one sum, of consecutive elements in the striped memory,
    those of both operands in the same vault."""
    turn = config.striped_banks * _STRIPE
    turns, tail = divmod(sums.length, turn)
    tensors: list[Tensor] = [getattr(sums, name) for name in sums.operands]
    if (
        sums.images * sums.rows > 1
        or not 0 < turns <= _MOST_TURNS
        or any(tensor.strides[3] != 1 for tensor in tensors)
        or min(tensor.address_bytes for tensor in tensors) < config.striped_start_bytes
        or len({tensor.address_bytes % (ELEMENT_BYTES * turn) for tensor in tensors}) > 1
    ):
        return inf, 0
    opcode, placement = Opcode(sums.opcode), config.placement
    lanes = placement.adders
    if opcode == Opcode.DOT:
        lanes = (*map(min, placement.multipliers, lanes),)
    most = min(_VECTORS * min(lanes), turns)
    banks = config.striped_banks

    def cycles(vectors: int) -> float:
        tiles = _tiles(turns, vectors)
        rest = turns - tiles * vectors
        loads = len(tensors) * (vectors * STRIPE_BYTES / BEAT_BYTES + _ALONE_WAIT_CYCLES)
        taken = _ALONE_START_CYCLES + tiles * max(_VECTORS * _STRIPE, loads)
        taken += _cycles(config, Opcode.SUM, tiles * vectors, 1, banks)
        if rest:
            taken += _cycles(config, opcode, 1, rest * banks, _STRIPE)
            taken += _cycles(config, Opcode.SUM, rest, 1, banks)
        if tail:
            taken += _fastest(config, opcode, 1, tail)[0]
        return taken + _fastest(config, Opcode.SUM, 1, turns + bool(tail))[0]

    # With fewer a bank would wait more than it computes.
    ways = ((cycles(vectors), vectors) for vectors in range(max(1, most * 7 // 8), most + 1))
    return min(ways, default=(inf, 0))


@lru_cache(maxsize=1 << 12)
def _fastest(
    config: PimConfig, opcode: Opcode, sums: int, length: int
) -> tuple[float, Opcode, int]:
    """As what so many sums of so many elements are computed fastest, and in pieces of how many;
    with the cycles."""
    ways = [(_cycles(config, opcode, sums, 1, length), opcode, length)]
    for each in {opcode, Opcode.DOT} if opcode == Opcode.MATVEC else {opcode}:
        piece = _LEAST_PIECE
        while piece < length and piece <= _MOST_CHUNKS * _chunk(config, each):
            whole, rest = divmod(length, piece)
            cycles = _cycles(config, each, sums, whole, piece)
            if rest:
                cycles += _cycles(config, each, sums, 1, rest)
            cycles += _fastest(config, Opcode.SUM, sums, whole + bool(rest))[0]
            ways.append((cycles, each, piece))
            piece *= 2
    return min(ways)


def _chunk(config: PimConfig, opcode: Opcode) -> int:
    """Elements of a vector that are loaded at once if lanes have all the vectors they can."""
    words = config.first_words
    if opcode == Opcode.DOT:
        words = min(words, config.second_words)
    return words // (_VECTORS * _VECTORS)


def _cycles(config: PimConfig, opcode: Opcode, sums: int, pieces: int, length: int) -> float:
    """Of a work."""
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
