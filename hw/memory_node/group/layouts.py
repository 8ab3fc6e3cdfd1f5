"""Layouts of the data between the parts of a group engine."""

from __future__ import annotations

from amaranth.lib import data

from hw.logic.line import LINE_BITS, LINE_BYTE_BITS
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import PACKET_LINES, Head, Operation, Status

__all__ = [
    "ADDRESS_LINE_BITS",
    "Allocation",
    "Answer",
    "Events",
    "Job",
    "Line",
    "Place",
    "Stripe",
]

ADDRESS_LINE_BITS = Head["address"].width - LINE_BYTE_BITS
"""Width of a line number in a packet's address, in bits."""

_LINES_BITS = PACKET_LINES.bit_length()

Allocation = data.StructLayout({"base": ADDRESS_LINE_BITS, "size": ADDRESS_LINE_BITS, "owner": 8})
"""Allocation of a group's memory: first line, number of lines, and the device that owns it."""

Answer = data.StructLayout(
    {
        "operation": max(Operation).bit_length(),
        "status": max(Status).bit_length(),
        "destination": 8,
        "tag": 16,
        "lines": 16,
        "address": 48,
    }
)
"""Head of an answer without its source; ``status`` is the one known before the access to memory."""

Line = data.StructLayout({"data": LINE_BITS, "error": 1})
"""Line from memory, with an error flag."""

Events = data.StructLayout(
    {"request": 1, "line_read": 1, "line_written": 1, "refused": len(Status)}
)
"""Events on a link in a cycle: a request was answered, a line was read from memory into an answer,
or a line was sent to memory. Bit ``s`` of ``refused``: an answer had the status ``s``."""


class Job(data.StructLayout):
    """Request to memory: lines of the group's memory."""

    def __init__(self, config: MemoryNodeConfig) -> None:
        lines = config.group_bytes >> LINE_BYTE_BITS
        super().__init__({"write": 1, "line": range(lines), "lines": _LINES_BITS})


class Place(data.StructLayout):
    """Lines of the group's memory from ``line`` of ``channel`` on, stripe by stripe."""

    def __init__(self, config: MemoryNodeConfig) -> None:
        super().__init__(
            {
                "channel": range(config.group_channels),
                "line": config.channel_address_bits - LINE_BYTE_BITS,
                "lines": _LINES_BITS,
            }
        )


class Stripe(data.StructLayout):
    """Lines of one channel that a link requests: an AXI burst."""

    def __init__(self, config: MemoryNodeConfig) -> None:
        super().__init__(
            {"line": config.channel_address_bits - LINE_BYTE_BITS, "lines": _LINES_BITS}
        )
