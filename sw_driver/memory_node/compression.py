"""Zero-value compression of data for memory-nodes (docs/memory-node-spec.md, "Compression")."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from .packets import LINE_BYTES, PACKET_LINES

__all__ = ["BLOCK_BYTES", "CompressionStatistics", "compress", "expand"]

BLOCK_BYTES = PACKET_LINES * LINE_BYTES
"""Bytes of a block, the unit of compression: the most that a packet carries."""

_MASK_BYTES = 2
"""Bytes of a line's mask: one bit for each of its sixteen words."""


@dataclass
class CompressionStatistics:
    """Bytes of blocks copied with compression, and the bytes moved over links for them."""

    bytes_out: int = 0
    moved_out: int = 0
    bytes_back: int = 0
    moved_back: int = 0

    def count(self, write: bool, nbytes: int, moved: int) -> None:
        """Add a block that was written (``write``) or read."""
        if write:
            self.bytes_out += nbytes
            self.moved_out += moved
        else:
            self.bytes_back += nbytes
            self.moved_back += moved

    def since(self, before: CompressionStatistics) -> CompressionStatistics:
        """Return the statistics counted after ``before`` was taken."""
        earlier = asdict(before)
        return CompressionStatistics(**{n: v - earlier[n] for n, v in asdict(self).items()})

    @property
    def ratio(self) -> float:
        """Compression ratio of all moved blocks; 1 before the first."""
        moved = self.moved_out + self.moved_back
        return (self.bytes_out + self.bytes_back) / moved if moved else 1.0


def compress(block: bytes) -> bytes:
    """Return the stored bytes of whole lines; ``block`` itself if compression does not help."""
    words = np.frombuffer(block, np.uint32)
    flags = words != 0
    masks = np.packbits(flags, bitorder="little").tobytes()
    stored = _lines(masks) + _lines(words[flags].tobytes())
    return stored if len(stored) < len(block) else block


def expand(stored: bytes, nbytes: int) -> bytes:
    """Return the ``nbytes`` that ``stored`` was compressed from; undefined for other data."""
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
