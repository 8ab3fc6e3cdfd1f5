"""Long sums in pieces, so that more lanes work on them, with the same result to the last bit.

A tree over n values (``docs/pim.md``, "Reductions") has, at its level k, the trees of the
consecutive 2**k values that start at multiples of 2**k, and of the rest at the end, if any. So
pieces of 2**k values are reduced one by one, and a tree over their sums is the tree over all.
"""

from __future__ import annotations

from dataclasses import replace

from .descriptor import ELEMENT_BYTES, Opcode, Tensor, Work
from .errors import DescriptorError

__all__ = ["LEAST_PIECE", "piece_for", "pieces_of", "split_reduction"]

LEAST_PIECE = 32
"""Smallest piece that is worth a work's row."""


def piece_for(*, rows: int, length: int, wanted_rows: int) -> int:
    """The largest power of two that makes ``wanted_rows`` pieces of ``rows`` sums of ``length``, at
    least :data:`LEAST_PIECE`; ``length`` or more if they need not be cut."""
    piece = LEAST_PIECE
    while piece < length and rows * -(-length // (2 * piece)) >= wanted_rows:
        piece *= 2
    if rows >= wanted_rows:
        piece = max(piece, 1 << (length - 1).bit_length())
    return piece


def pieces_of(length: int, piece: int) -> int:
    """Sums that are left of ``length`` values in pieces of ``piece``."""
    return -(-length // piece)


def split_reduction(work: Work, piece: int, partial_address_bytes: int) -> list[Work]:
    """The works that make up ``work``, a SUM or a DOT, in pieces of ``piece`` elements.

    Their sums are kept, dense, at ``partial_address_bytes``: rows times :func:`pieces_of` elements.
    The last work adds them up. The result is that of ``work``, bit for bit.

    Raises :class:`~sw_driver.pim.errors.DescriptorError` for other works, and for a piece that is
    no power of two.
    """
    if work.opcode not in (Opcode.SUM, Opcode.DOT):
        raise DescriptorError(
            f"opcode {work.opcode:#x} is not a SUM or DOT: only these are cut into pieces",
            opcode=work.opcode,
        )
    if piece < 1 or piece & (piece - 1):
        raise DescriptorError(
            f"a piece of {piece} elements is no part of the tree: expected a power of two",
            piece=piece,
        )
    rows, length = work.rows, work.length
    pieces = pieces_of(length, piece)
    if pieces == 1:
        return [work]
    whole, rest = divmod(length, piece)

    def moved(row: int, first: int, *, piece_rows: bool = False) -> dict[str, Tensor]:
        """The operands from element ``first`` of ``row`` on; with ``piece_rows`` a row of theirs is
        a piece of that row."""
        operands: dict[str, Tensor] = {}
        for name in work.operands:
            tensor: Tensor = getattr(work, name)
            down, along = tensor.strides
            operands[name] = Tensor(
                address_bytes=tensor.address_bytes + ELEMENT_BYTES * (row * down + first * along),
                strides=(piece * along if piece_rows else down, along),
            )
        return operands

    def partial(row: int, number: int) -> int:
        # By pieces or by rows, so that what one work writes is dense and apart from the others.
        place = row * pieces + number if by_rows else number * rows + row
        return partial_address_bytes + ELEMENT_BYTES * place

    by_rows = rows < whole
    works: list[Work] = []
    if by_rows:
        for row in range(rows):
            to = Tensor(address_bytes=partial(row, 0), strides=(1,))
            operands = moved(row, 0, piece_rows=True)
            works.append(replace(work, rows=whole, length=piece, result=to, **operands))
    else:
        for number in range(whole):
            to = Tensor(address_bytes=partial(0, number), strides=(1,))
            works.append(replace(work, length=piece, result=to, **moved(0, number * piece)))
    if rest:
        to = Tensor(address_bytes=partial(0, whole), strides=(pieces if by_rows else 1,))
        works.append(replace(work, length=rest, result=to, **moved(0, whole * piece)))
    sums = Tensor(
        address_bytes=partial_address_bytes, strides=(pieces, 1) if by_rows else (1, rows)
    )
    total = replace(work, opcode=Opcode.SUM, length=pieces, a=sums, b=Tensor())
    return [*works, total]
