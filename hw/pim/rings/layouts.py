"""Layouts between registers and rings, and of a ring's slots."""

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
"""Bytes of a ring's slot: a descriptor, then a completion."""

DESCRIPTOR_BEATS = DESCRIPTOR_WORDS * 4 // BEAT_BYTES
"""Beats of a slot's descriptor; the beat after them is the completion."""

COUNT_BITS = 16
"""Width of a ring's counts, which wrap to 0."""


@cache
def ring_control_layout() -> data.StructLayout:
    """Return the layout of a ring master's settings.

    ``base`` is the ring's address in slots, ``size`` the binary logarithm of its slots. ``head``
    counts the descriptors that the master has written.
    """
    return data.StructLayout({"base": 32, "size": 4, "head": COUNT_BITS})


@cache
def ring_status_layout() -> data.StructLayout:
    """Return the layout of a ring's status for its master.

    ``tail`` counts the descriptors taken; ``cause`` and ``id`` belong to the last of them.
    ``completions`` counts the completions written; ``completed_id`` is the id in the last of them.
    """
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
    """Return the layout of a completion, written when a work has completed or was refused.

    ``number`` counts completions from 1, ``descriptor`` descriptors from 0 (docs/pim-spec.md,
    "Rings").
    """
    return data.StructLayout(
        {
            "number": COUNT_BITS,
            "descriptor": COUNT_BITS,
            "id": ID_BITS,
            "unused": 32 - ID_BITS,
            "cause": 32,
        }
    )
