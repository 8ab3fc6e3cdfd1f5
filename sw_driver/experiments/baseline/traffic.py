"""Bytes that an update and the bandwidth loops move between processor and memory."""

from __future__ import annotations

from dataclasses import dataclass

from sw_driver.axdimm.runs import PARAMETER_BYTES

__all__ = ["ADAM", "COPY", "READ", "TRIAD", "Traffic"]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Streams of FP32 values that a loop reads and writes, once each."""

    reads: int
    """Streams that are read."""
    writes: int
    """Streams that are written."""
    written_only: int
    """Those of the written streams that the loop does not read."""

    @property
    def read_bytes(self) -> int:
        """Read for one value of each stream, by the loop itself."""
        return PARAMETER_BYTES * self.reads

    @property
    def written_bytes(self) -> int:
        """Written for one value of each stream."""
        return PARAMETER_BYTES * self.writes

    @property
    def counted_bytes(self) -> int:
        """Read and written; what STREAM counts, and the paper (section 6.2)."""
        return self.read_bytes + self.written_bytes

    def moved_bytes(self, *, streaming: bool) -> int:
        """As :attr:`counted_bytes`, with the write-allocates.

        A cache fetches a line before an ordinary store to it. Streams that are read as well are
        there already; those that are only written are read once more, unless the stores stream.
        """
        allocated = 0 if streaming else self.written_only
        return self.counted_bytes + PARAMETER_BYTES * allocated


ADAM = Traffic(reads=4, writes=3, written_only=0)
"""p, g, m and v are read, p, m and v written in place: no store allocates."""

READ = Traffic(reads=2, writes=0, written_only=0)
COPY = Traffic(reads=1, writes=1, written_only=1)
TRIAD = Traffic(reads=2, writes=1, written_only=1)
