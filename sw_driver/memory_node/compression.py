"""Zero-value compression of what goes to memory-nodes (docs/memory-node-spec.md, "Compression")."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from .packets import LINE_BYTES, PACKET_LINES

__all__ = ["BLOCK_BYTES", "CompressionStatistics", "compress", "expand"]

BLOCK_BYTES = PACKET_LINES * LINE_BYTES
"""Bytes of a block, which is compressed by itself: the most that a packet carries."""

_MASK_BYTES = 2
"""Bytes of the mask of a line: a bit for each of its sixteen words."""


@dataclass
class CompressionStatistics:
    """Bytes of blocks that were copied with compression, and what was moved for them."""

    bytes_out: int = 0
    moved_out: int = 0
    bytes_back: int = 0
    moved_back: int = 0

    def count(self, write: bool, nbytes: int, moved: int) -> None:
        """Adds a block that has been written or read."""
        if write:
            self.bytes_out += nbytes
            self.moved_out += moved
        else:
            self.bytes_back += nbytes
            self.moved_back += moved

    def since(self, before: CompressionStatistics) -> CompressionStatistics:
        """Statistics of what has been counted after ``before`` was taken."""
        earlier = asdict(before)
        return CompressionStatistics(**{n: v - earlier[n] for n, v in asdict(self).items()})

    @property
    def ratio(self) -> float:
        """How many times as much uncompressed copies would have moved; 1 before the first."""
        moved = self.moved_out + self.moved_back
        return (self.bytes_out + self.bytes_back) / moved if moved else 1.0


def compress(block: bytes) -> bytes:
    """The bytes that are stored for whole lines; ``block`` itself if they are not fewer."""
    words = np.frombuffer(block, np.uint32)
    flags = words != 0
    masks = np.packbits(flags, bitorder="little").tobytes()
    stored = _lines(masks) + _lines(words[flags].tobytes())
    return stored if len(stored) < len(block) else block


def expand(stored: bytes, nbytes: int) -> bytes:
    """The ``nbytes`` of lines that ``stored`` was made of; anything if it was made of none."""
    if len(stored) >= nbytes:
        return stored
    used = nbytes // LINE_BYTES * _MASK_BYTES
    masks = np.frombuffer(stored[:used], np.uint8)
    rest = np.frombuffer(stored[len(_lines(bytes(used))) :], np.uint32)
    places = np.flatnonzero(np.unpackbits(masks, bitorder="little"))[: len(rest)]
    words = np.zeros(nbytes // 4, np.uint32)
    words[places] = rest[: len(places)]
    return words.tobytes()


def _lines(data: bytes) -> bytes:
    return data + bytes(-len(data) % LINE_BYTES)
