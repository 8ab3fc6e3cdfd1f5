"""The host's cache of a channel's DRAM (paper section 4.1).

AXDIMM's memory is mapped write-back cached. The module cannot tell the cache that its DRAM changed.
Data that a program loads or stores through the mapping therefore stays in the cache, possibly
stale, until the line is flushed. The runtime's own copies flush every line that they touch, so
they are never stale.

In this model a line leaves the cache only when it is flushed. A processor may write it back or
evict it earlier, at a time that no program can rely on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .transport import LINE_BYTES, Transport

__all__ = ["HostCache"]


class HostCache:
    """The cached lines of a channel. Addresses are bytes below the channel's register windows."""

    def __init__(self, transport: Transport, channel: int) -> None:
        self._transport = transport
        self._number = channel
        self.held: dict[int, NDArray[np.uint8]] = {}
        """Cached lines by their numbers."""
        self._dirty: set[int] = set()

    def holds(self, address: int, nbytes: int) -> bool:
        """Return True if all of the bytes are cached."""
        return all(line in self.held for line in _lines(address, nbytes))

    def load(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Return bytes from the cache, however old; read and keep missing lines."""
        lines = _lines(address, nbytes)
        missing = [line for line in lines if line not in self.held]
        if missing:
            span = (missing[-1] + 1 - missing[0]) * LINE_BYTES
            read = self._transport.read_lines(self._number, missing[0] * LINE_BYTES, span)
            for line in missing:
                self.held[line] = read.reshape(-1, LINE_BYTES)[line - missing[0]].copy()
        data = np.concatenate([np.empty(0, np.uint8), *(self.held[line] for line in lines)])
        start = address % LINE_BYTES
        return data[start : start + nbytes]

    def store(self, address: int, data: NDArray[np.uint8]) -> None:
        """Change lines in the cache; lines that are not cached are read first."""
        self.load(address, data.size)
        for line in _lines(address, data.size):
            offset = line * LINE_BYTES - address
            part = data[max(offset, 0) : offset + LINE_BYTES]
            begin = max(-offset, 0)
            self.held[line][begin : begin + part.size] = part
            self._dirty.add(line)

    def flush(self, address: int, nbytes: int) -> None:
        """Remove the lines of these bytes, and write back those changed by a store.

        This also overwrites newer results of the kernel. In acceleration mode the arbiter refuses
        the write, and the data is lost.
        """
        lines = _lines(address, nbytes)
        for line in sorted(line for line in self.held if line in lines):
            data = self.held.pop(line)
            if line in self._dirty:
                self._dirty.remove(line)
                self._transport.write_lines(self._number, line * LINE_BYTES, data)


def _lines(address: int, nbytes: int) -> range:
    """Return the numbers of the lines that hold the bytes."""
    return range(address // LINE_BYTES, -(-(address + nbytes) // LINE_BYTES) if nbytes else 0)
