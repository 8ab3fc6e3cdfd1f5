"""Blocks without their zeros (docs/memory-node-spec.md, "Compression")."""

from __future__ import annotations

import numpy as np

from golden.memory_node.packet import LINE_BYTES

__all__ = ["compressed", "expanded"]

_BLOCK_LINES = 64
_WORDS = LINE_BYTES // 4
_MASK_BYTES = _WORDS // 8


def compressed(block: bytes) -> bytes:
    """What is stored of a block of 1 to 64 lines; the block if that is not less.

    ``ValueError`` for anything else than such a block.
    """
    lines, odd = divmod(len(block), LINE_BYTES)
    if odd or not 1 <= lines <= _BLOCK_LINES:
        raise ValueError(
            f"a block of {len(block)} bytes: expected a multiple of {LINE_BYTES} from "
            f"{LINE_BYTES} to {_BLOCK_LINES * LINE_BYTES}"
        )
    words = np.frombuffer(block, "<u4")
    masks = np.packbits(words != 0, bitorder="little").tobytes()
    stored = _filled(masks) + _filled(words[words != 0].tobytes())
    return stored if len(stored) < len(block) else block


def expanded(stored: bytes, lines: int) -> bytes:
    """The block of so many lines that ``stored`` was made of.

    ``ValueError`` if nothing is stored so.
    """
    if len(stored) == LINE_BYTES * lines:
        return stored
    mask_bytes = len(_filled(bytes(_MASK_BYTES * lines)))
    masks = np.frombuffer(stored[: _MASK_BYTES * lines], np.uint8)
    there = np.unpackbits(masks, bitorder="little").astype(bool)
    count = int(there.sum())
    if len(stored) != mask_bytes + len(_filled(bytes(4 * count))):
        raise ValueError(
            f"{len(stored)} bytes stored of {lines} lines with {count} words: expected "
            f"{mask_bytes} and those of the words, in whole lines"
        )
    words = np.zeros(_WORDS * lines, "<u4")
    words[there] = np.frombuffer(stored[mask_bytes : mask_bytes + 4 * count], "<u4")
    return words.tobytes()


def _filled(data: bytes) -> bytes:
    """``data`` with zeros up to a whole line."""
    return data + bytes(-len(data) % LINE_BYTES)
