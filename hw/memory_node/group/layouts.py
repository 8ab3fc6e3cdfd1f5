"""What the parts of a group engine tell each other."""

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
"""Width of the number of a line, as a packet addresses it."""

_LINES_BITS = PACKET_LINES.bit_length()

Allocation = data.StructLayout({"base": ADDRESS_LINE_BITS, "size": ADDRESS_LINE_BITS, "owner": 8})
"""What part of a group's memory, in lines, is whose."""

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
"""Head of an answer but for who gives it; ``status`` of what was known before memory was asked."""

Line = data.StructLayout({"data": LINE_BITS, "error": 1})
"""A line as memory gave it."""

Events = data.StructLayout(
    {"request": 1, "line_read": 1, "line_written": 1, "refused": len(Status)}
)
"""What happens on a link in a cycle: a request was answered, a line of memory read into an answer
or given to memory to be written; bit ``s`` of ``refused``: the answer had the status ``s``."""


class Job(data.StructLayout):
    """A request that memory is asked for: lines of the group's memory."""

    def __init__(self, config: MemoryNodeConfig) -> None:
        lines = config.group_bytes >> LINE_BYTE_BITS
        super().__init__({"write": 1, "line": range(lines), "lines": _LINES_BITS})


class Place(data.StructLayout):
    """Lines of the group's memory from ``line`` of ``channel`` on, over stripe after stripe."""

    def __init__(self, config: MemoryNodeConfig) -> None:
        super().__init__(
            {
                "channel": range(config.group_channels),
                "line": config.channel_address_bits - LINE_BYTE_BITS,
                "lines": _LINES_BITS,
            }
        )


class Stripe(data.StructLayout):
    """Lines that a link asks of one channel: an AXI burst."""

    def __init__(self, config: MemoryNodeConfig) -> None:
        super().__init__(
            {"line": config.channel_address_bits - LINE_BYTE_BITS, "lines": _LINES_BITS}
        )
