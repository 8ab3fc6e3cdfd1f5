"""A port to the memory of the stack: what a bank, or the host, asks and is answered."""

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
"""Width of the tag by which a port knows its requests again."""

HOST_TAG_BITS = MEMORY_TAG_BITS - 1
"""Width of the tags of the host, and of rings and cores, who share a port of the switch."""


@cache
def memory_request_layout(
    config: PimConfig, *, tag_bits: int = MEMORY_TAG_BITS
) -> data.StructLayout:
    """A read or write of a beat of 32 bytes.

    ``address`` counts beats; a bank holds the beat, but for what the host asks. A set bit of
    ``strobe`` writes the byte of ``data``; a read ignores both. ``tag`` comes back with the
    response.
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
    """What a write asks; all but its tag."""
    request = memory_request_layout(config)
    return data.StructLayout({name: request[name].shape for name in ("address", "data", "strobe")})


@cache
def memory_response_layout(*, tag_bits: int = MEMORY_TAG_BITS) -> data.StructLayout:
    """The data of a read, or that a write is done, of which ``data`` is undefined."""
    return data.StructLayout({"data": 8 * BEAT_BYTES, "tag": tag_bits, "write": 1})


@cache
def host_response_layout(*, tag_bits: int = MEMORY_TAG_BITS) -> data.StructLayout:
    """A response of the memory, or, with ``error``, that no bank holds the beat: ``data`` is 0, and
    nothing was written."""
    return data.StructLayout({**memory_response_layout(tag_bits=tag_bits).members, "error": 1})


def nowhere(config: PimConfig, address: Any) -> Any:
    """Whether no bank holds the beat at ``address``."""
    local, start, end = (
        place // BEAT_BYTES
        for place in (config.local_bytes, config.striped_start_bytes, config.stack_bytes)
    )
    return ((address >= local) & (address < start)) | (address >= end)
