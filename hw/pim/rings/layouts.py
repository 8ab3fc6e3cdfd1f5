"""What registers and rings tell each other, and what a ring's slots hold."""

from __future__ import annotations

from functools import cache

from amaranth.lib import data

from hw.pim.config import BEAT_BYTES
from hw.pim.work.descriptor import DESCRIPTOR_WORDS
from hw.pim.work.status import CAUSE_BITS, ID_BITS

__all__ = [
    "COUNT_BITS",
    "DESCRIPTOR_BEATS",
    "RING_SLOT_BYTES",
    "completion_layout",
    "ring_control_layout",
    "ring_status_layout",
]

RING_SLOT_BYTES = 256
"""Bytes of a slot of a ring: a descriptor, then a completion."""

DESCRIPTOR_BEATS = DESCRIPTOR_WORDS * 4 // BEAT_BYTES
"""Beats that are read of a slot. The beat after them is a completion's."""

COUNT_BITS = 16
"""Width of the counts of a ring, which go on from their greatest value to 0."""


@cache
def ring_control_layout() -> data.StructLayout:
    """What a ring's master says: where it is (in slots), the logarithm of its slots, how many
    descriptors have been written."""
    return data.StructLayout({"base": 32, "size": 4, "head": COUNT_BITS})


@cache
def ring_status_layout() -> data.StructLayout:
    """What a ring's master is told: how many descriptors have been taken, what became of the last
    one; how many completions have been written, and the id in the last of them."""
    return data.StructLayout(
        {
            "tail": COUNT_BITS,
            "cause": CAUSE_BITS,
            "id": ID_BITS,
            "completions": COUNT_BITS,
            "completed_id": ID_BITS,
        }
    )


@cache
def completion_layout() -> data.StructLayout:
    """What is written when a work has completed or was refused (docs/pim-spec.md, "Rings"): which
    completion it is, counted from 1, and of which descriptor, counted from 0."""
    return data.StructLayout(
        {
            "number": COUNT_BITS,
            "descriptor": COUNT_BITS,
            "id": ID_BITS,
            "unused": 32 - ID_BITS,
            "cause": 32,
        }
    )
