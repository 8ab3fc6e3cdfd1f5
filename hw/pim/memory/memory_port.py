"""Requests and responses of a port to the stack's memory, for a bank or the host."""

from __future__ import annotations

from functools import cache
from typing import Any

from amaranth.hdl import unsigned
from amaranth.lib import data

from hw.pim.config import BEAT_BYTES, PimConfig

__all__ = [
    "HOST_TAG_BITS",
    "MEMORY_TAG_BITS",
    "host_response_layout",
    "memory_request_layout",
    "memory_response_layout",
    "nowhere",
    "write_request_layout",
]

MEMORY_TAG_BITS = 6
"""Width of the tag that identifies a port's request."""

HOST_TAG_BITS = MEMORY_TAG_BITS - 1
"""Width of the tags of host, rings and cores, which share a port of the switch."""


@cache
def memory_request_layout(
    config: PimConfig, *, tag_bits: int = MEMORY_TAG_BITS
) -> data.StructLayout:
    """Return the layout of a read or write of a beat of 32 bytes.

    ``address`` counts beats. Except in the host's requests, it must be that of a beat in a bank. A
    set bit of ``strobe`` writes the byte of ``data``; a read ignores both. ``tag`` comes back with
    the response.
    """
    return data.StructLayout(
        {
            "data": 8 * BEAT_BYTES,
            "strobe": BEAT_BYTES,
            "address": unsigned((config.stack_bytes // BEAT_BYTES - 1).bit_length()),
            "tag": tag_bits,
            "write": 1,
        }
    )


def write_request_layout(config: PimConfig) -> data.StructLayout:
    """Return the layout of a write request without its tag."""
    request = memory_request_layout(config)
    return data.StructLayout({name: request[name].shape for name in ("address", "data", "strobe")})


@cache
def memory_response_layout(*, tag_bits: int = MEMORY_TAG_BITS) -> data.StructLayout:
    """Return the layout of a response; ``data`` is undefined after a write."""
    return data.StructLayout({"data": 8 * BEAT_BYTES, "tag": tag_bits, "write": 1})


@cache
def host_response_layout(*, tag_bits: int = MEMORY_TAG_BITS) -> data.StructLayout:
    """Return the layout of a response to host, rings and cores.

    ``error``: no bank holds the beat; then ``data`` is 0, and nothing was written.
    """
    return data.StructLayout({**memory_response_layout(tag_bits=tag_bits).members, "error": 1})


def nowhere(config: PimConfig, address: Any) -> Any:
    """Return whether no bank holds the beat at ``address``."""
    local, start, end = (
        place // BEAT_BYTES
        for place in (config.local_bytes, config.striped_start_bytes, config.stack_bytes)
    )
    return ((address >= local) & (address < start)) | (address >= end)
