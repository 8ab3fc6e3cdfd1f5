"""Packet and its flits' payloads (docs/memory-node-spec.md, "Packets")."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LINE_BYTES", "Operation", "Packet", "Status"]

LINE_BYTES = 64

_FIELDS = {
    "destination": 1,
    "source": 1,
    "operation": 1,
    "status": 1,
    "tag": 2,
    "lines": 2,
    "address": 6,
}
"""Bytes of each field, the first at the lowest address."""


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


@dataclass(frozen=True, kw_only=True)
class Packet:
    """Head of a packet and its lines.

    ``operation`` and ``status`` are plain numbers, so that packets can be wrong. ``data`` is that
    of the flits after the head, whatever ``lines`` says.

    Examples
    --------
    >>> write = {"operation": Operation.WRITE, "lines": 2, "address": 4096}
    >>> packet = Packet(destination=1, source=0, **write, data=bytes(128))
    >>> [len(payload) for payload in packet.payloads]
    [64, 64, 64]
    >>> Packet.of(packet.payloads).address
    4096
    """

    destination: int
    source: int
    operation: int
    status: int = 0
    tag: int = 0
    lines: int = 0
    address: int = 0
    data: bytes = b""

    @property
    def payloads(self) -> list[bytes]:
        """Payloads of the packet's flits: the first is the head, the last the tail."""
        if len(self.data) % LINE_BYTES:
            raise ValueError(f"data of a packet is whole lines, got {len(self.data)} bytes")
        head = b"".join(
            getattr(self, name).to_bytes(size, "little") for name, size in _FIELDS.items()
        )
        lines = range(0, len(self.data), LINE_BYTES)
        return [
            head.ljust(LINE_BYTES, b"\0"),
            *(self.data[at : at + LINE_BYTES] for at in lines),
        ]

    @staticmethod
    def of(payloads: Sequence[bytes]) -> Packet:
        """Return the packet with the given payloads, from a head to its tail."""
        head, *lines = payloads
        values, at = {}, 0
        for name, size in _FIELDS.items():
            values[name] = int.from_bytes(head[at : at + size], "little")
            at += size
        if any(head[at:]):
            raise ValueError("a head has something where it should be zero")
        return Packet(**values, data=b"".join(lines))
