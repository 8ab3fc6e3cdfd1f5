"""The line of 64 bytes: the unit of the host link, the buses and the DRAM of a channel.

A beat of the AXI buses is a line, and so is a burst of the DRAM.
"""

from __future__ import annotations

__all__ = [
    "AXI_BURST_BITS",
    "AXI_BURST_LINES",
    "LINE_BITS",
    "LINE_BYTES",
    "LINE_BYTE_BITS",
    "line_width",
]

LINE_BYTES = 64

LINE_BITS = 8 * LINE_BYTES

LINE_BYTE_BITS = LINE_BYTES.bit_length() - 1
"""Bits of a byte address that select a byte of a line; also ``AxSIZE`` of a beat."""

AXI_BURST_LINES = 4096 // LINE_BYTES
"""Lines of the longest AXI burst; a burst may not cross a 4 KB boundary (IHI 0022, A3.4.1)."""

AXI_BURST_BITS = AXI_BURST_LINES.bit_length() - 1
"""Bits of a line's number that select a line of the longest AXI burst."""


def line_width(addr_width: int) -> int:
    """Return the bits of a line's number (address in units of 64 bytes) for an address width."""
    return addr_width - LINE_BYTE_BITS
