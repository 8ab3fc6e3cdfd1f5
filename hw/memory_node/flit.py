"""Layouts of flits, as they are between link ports and engines, and of packets.

The layouts are those of docs/memory-node-spec.md.
"""

from __future__ import annotations

import enum

from amaranth.lib import data, stream

from hw.logic.line import LINE_BYTES

__all__ = [
    "CHANNELS",
    "PACKET_LINES",
    "Flit",
    "FlitStream",
    "Head",
    "Operation",
    "Status",
]

PACKET_LINES = 64
"""Maximum number of lines in a packet: the 4 KB messages of the paper (Figure 9)."""

CHANNELS = 4
"""Virtual channels: requests use 0 and 1, responses 2 and 3, the odd ones past the date line."""


class Operation(enum.IntEnum):
    """Operation that a packet requests or answers."""

    READ = 1
    WRITE = 2
    READ_DATA = 3
    WRITE_DONE = 4
    MESSAGE = 5
    REFUSED = 6


class Status(enum.IntEnum):
    """Outcome of a request."""

    OK = 0
    BOUNDS = 1
    OWNER = 2
    OPERATION = 3
    FORMAT = 4
    MEMORY = 5


Flit = data.StructLayout({"head": 1, "tail": 1, "payload": 8 * LINE_BYTES})
"""Flit inside a node, as a link port takes and delivers it on one virtual channel."""

Head = data.StructLayout(
    {
        "destination": 8,
        "source": 8,
        "operation": 8,
        "status": 8,
        "tag": 16,
        "lines": 16,
        "address": 48,
        "reserved": 8 * LINE_BYTES - 112,
    }
)
"""Payload of a packet's first flit."""

FlitStream = stream.Signature(Flit)
