"""A flit and its 72 bytes (docs/memory-node-spec.md, "Flits")."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

__all__ = ["FLIT_BYTES", "PAYLOAD_BYTES", "Flit", "crc32c"]

FLIT_BYTES = 72
PAYLOAD_BYTES = 64

_POLYNOMIAL = 0x1EDC6F41

_HEADER = {
    "filled": 1, "head": 1, "tail": 1, "channel": 2, "sequence": 8, "acknowledge": 8, "retry": 1,
    "credits": 8, "credit_channel": 2,
}  # fmt: skip
"""Bits of each field, the lowest first."""


@lru_cache(maxsize=512)  # both ends of a wire want to know it
def crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720, section 12.1): 0xE3069283 of ``b"123456789"``."""
    register = 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ _EFFECTS[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


def _effect(byte: int) -> int:
    """What the polynomial's register has after eight bits from ``byte``, the lowest first; it is
    kept mirrored, with the coefficient of x^31 in bit 0."""
    mirrored = int(f"{_POLYNOMIAL:032b}"[::-1], 2)
    for _ in range(8):
        out = byte & 1
        byte >>= 1
        if out:
            byte ^= mirrored
    return byte


_EFFECTS = [_effect(byte) for byte in range(256)]


@dataclass(frozen=True, kw_only=True)
class Flit:
    """What a flit says; in an empty one all of ``head`` to ``payload`` but the number is zero."""

    sequence: int
    acknowledge: int = 0
    credits: int = 0
    credit_channel: int = 0
    retry: bool = False
    filled: bool = False
    head: bool = False
    tail: bool = False
    channel: int = 0
    payload: bytes = bytes(PAYLOAD_BYTES)

    def encode(self) -> bytes:
        """The bytes of the flit as it goes over the wire, the CRC included."""
        if len(self.payload) != PAYLOAD_BYTES:
            raise ValueError(f"a payload has {PAYLOAD_BYTES} bytes, got {len(self.payload)}")
        header = at = 0
        for name, width in _HEADER.items():
            value = getattr(self, name)
            if not 0 <= value < 1 << width:
                raise ValueError(f"a field of {width} bits of a flit has no room for {value}")
            header |= value << at
            at += width
        checked = header.to_bytes(4, "little") + self.payload
        return checked + crc32c(checked).to_bytes(4, "little")

    @staticmethod
    def decode(data: bytes) -> Flit | None:
        """The flit of 72 bytes, or None if its CRC is wrong."""
        if len(data) != FLIT_BYTES:
            raise ValueError(f"a flit has {FLIT_BYTES} bytes, got {len(data)}")
        if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return None
        header = int.from_bytes(data[:4], "little")
        fields: dict[str, Any] = {}
        for name, width in _HEADER.items():
            fields[name] = header & (1 << width) - 1
            header >>= width
        return Flit(**fields, payload=data[4:-4])
