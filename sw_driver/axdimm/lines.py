"""Bytes of a channel's DRAM over the host link, which moves whole lines of 64 bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..device.transport import LINE_BYTES, Transport

__all__ = ["read_bytes", "write_bytes"]


def read_bytes(transport: Transport, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
    """Reads the lines that hold the bytes, in one call."""
    if not nbytes:
        return np.empty(0, dtype=np.uint8)
    start = address % LINE_BYTES
    lines = -(-(start + nbytes) // LINE_BYTES)
    data = transport.read_lines(channel, address - start, lines * LINE_BYTES)
    return data[start : start + nbytes]


def write_bytes(transport: Transport, channel: int, address: int, data: NDArray[np.uint8]) -> None:
    """Writes the whole lines in one call; then a first and last part, each read before.

    In the order of non-temporal stores through write-combining buffers: parts wait for the fence.
    """
    end = address + data.size
    first = -(-address // LINE_BYTES) * LINE_BYTES
    last = end - end % LINE_BYTES
    if first < last:
        transport.write_lines(channel, first, data[first - address : last - address])
    parts = {(address, min(end, first)), (max(address, last), end)}
    for start, stop in sorted(part for part in parts if part[0] < part[1]):
        line = start - start % LINE_BYTES
        held = transport.read_lines(channel, line, LINE_BYTES).copy()
        held[start - line : stop - line] = data[start - address : stop - address]
        transport.write_lines(channel, line, held)
