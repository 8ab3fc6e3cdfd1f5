"""What goes through a memory-node: flits as they are between link ports and engines, and packets.

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
"""Most lines that a packet carries: the 4 KB messages of the paper (Figure 9)."""

CHANNELS = 4
"""Virtual channels: requests 0 and 1, responses 2 and 3, the odd ones past the date line."""


class Operation(enum.IntEnum):
    """What a packet asks or answers."""

    READ = 1
    WRITE = 2
    READ_DATA = 3
    WRITE_DONE = 4
    MESSAGE = 5
    REFUSED = 6


class Status(enum.IntEnum):
    """How a request ended."""

    OK = 0
    BOUNDS = 1
    OWNER = 2
    OPERATION = 3
    FORMAT = 4
    MEMORY = 5


Flit = data.StructLayout({"head": 1, "tail": 1, "payload": 8 * LINE_BYTES})
"""A flit inside a node: what a link port takes and gives on one virtual channel."""

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
