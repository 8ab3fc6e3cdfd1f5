"""Long sums in pieces, so that more lanes work on them, with the same result to the last bit.

A tree over n values (``docs/pim-spec.md``, "Reductions") has, at its level k, the trees of the
consecutive 2**k values that start at multiples of 2**k, and of the rest at the end, if any. So
pieces of 2**k values are reduced one by one, and a tree over their sums is the tree over all.
"""

from __future__ import annotations

from .descriptor import Opcode, Work
from .placing import PlacedTensor, work_on

__all__ = ["LEAST_PIECE", "piece_for", "pieces_of", "split_sum"]

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


def split_sum(
    values: PlacedTensor, result: PlacedTensor, piece: int, partial_address_bytes: int
) -> list[Work]:
    """The works that sum the rows of ``values``, in pieces of ``piece`` elements, to ``result``.

    ``piece`` is a power of two. The last work adds up the pieces' sums, which are kept, dense, at
    ``partial_address_bytes``: rows times :func:`pieces_of` elements; not used for a single piece.
    """
    rows, length = values.shape
    pieces, whole = pieces_of(length, piece), length // piece
    if pieces == 1:
        return [work_on(Opcode.SUM, a=values, result=result)]
    # By pieces or by rows, so that what one work writes is dense and apart from the others.
    by_rows = rows < whole
    partial = PlacedTensor(
        address_bytes=partial_address_bytes,
        shape=(rows, pieces),
        strides=(pieces, 1) if by_rows else (1, rows),
    )
    parts: list[tuple[PlacedTensor, PlacedTensor]] = []
    if by_rows:
        along = values.strides[1]
        for row in range(rows):
            in_pieces = PlacedTensor(
                address_bytes=values.at(row), shape=(whole, piece), strides=(piece * along, along)
            )
            parts.append((in_pieces, partial[row:, :whole].view(1)))
    else:
        for number in range(whole):
            of_piece = values[:, number * piece : (number + 1) * piece]
            parts.append((of_piece, partial[:, number:].view(0)))
    if length % piece:
        parts.append((values[:, whole * piece :], partial[:, whole:].view(0)))
    parts.append((partial, result))
    return [work_on(Opcode.SUM, a=a, result=to) for a, to in parts]
