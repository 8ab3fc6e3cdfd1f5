"""Packets of memory-nodes, as a device sends and receives them (docs/memory-node-spec.md)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from hw.logic.line import LINE_BYTES
from hw.memory_node.flit import PACKET_LINES, Operation, Status

__all__ = ["LINE_BYTES", "PACKET_LINES", "REQUESTS", "Flit", "Operation", "Packet", "Status"]

REQUESTS = 0
"""Virtual channel in which a device's requests start."""

_HEAD = struct.Struct("<BBBBHHQ")
_ADDRESS_BITS = 48


class Flit(NamedTuple):
    """A flit on a virtual channel of a link port."""

    head: bool
    tail: bool
    payload: bytes


class Packet(NamedTuple):
    """A packet; ``data`` holds its lines.

    Examples
    --------
    >>> request = Packet(1, 0, operation=2, status=0, tag=7, lines=2, address=64, data=bytes(128))
    >>> [(flit.head, flit.tail) for flit in request.flits()]
    [(True, False), (False, False), (False, True)]
    >>> Packet.of([flit.payload for flit in request.flits()]) == request
    True
    """

    destination: int
    source: int
    operation: int
    status: int
    tag: int
    lines: int
    address: int
    data: bytes = b""

    def flits(self) -> list[Flit]:
        """Return the packet's flits in order."""
        head = _HEAD.pack(*self[:7]).ljust(LINE_BYTES, b"\0")
        last = len(self.data) // LINE_BYTES
        lines = (self.data[at : at + LINE_BYTES] for at in range(0, len(self.data), LINE_BYTES))
        return [
            Flit(number == 0, number == last, payload)
            for number, payload in enumerate([head, *lines])
        ]

    @staticmethod
    def of(payloads: list[bytes]) -> Packet:
        """Return the packet with these payloads, from head to tail."""
        *fields, address = _HEAD.unpack_from(payloads[0])
        return Packet._make([*fields, address & (1 << _ADDRESS_BITS) - 1, b"".join(payloads[1:])])
