"""What registers and cores tell each other, and where a core finds what."""

from __future__ import annotations

from functools import cache

from amaranth.lib import data, enum

__all__ = [
    "CoreCause",
    "core_control_layout",
    "core_status_layout",
]


class CoreCause(enum.Enum, shape=4):
    """Why a core was stopped."""

    NONE = 0
    UNMAPPED = 1
    """There is nothing at the address."""
    WINDOW = 2
    """It is beyond what its window shows."""
    MEMORY = 3
    """Its window shows it, but no bank holds it."""
    REGISTER = 4
    """It is a register that the core may not write, or not in this way."""
    LIMIT = 5
    """The core was not idle for as many cycles as its limit."""
    STOP = 6
    """The firmware stopped it."""
    RING = 7
    """It put more descriptors into its ring than there are slots."""


@cache
def core_control_layout() -> data.StructLayout:
    """What the host says: whether the core runs, base and size of window 0 in beats, the limit in
    cycles, and how many kernels it has asked for."""
    return data.StructLayout({"run": 1, "base": 32, "size": 32, "limit": 32, "head": 16})


@cache
def core_status_layout() -> data.StructLayout:
    """What the host is told: whether the core runs, and is idle; how many kernels are done; why it
    was stopped, the firmware's reason, and the address."""
    return data.StructLayout(
        {"running": 1, "idle": 1, "tail": 16, "cause": CoreCause, "reason": 8, "address": 32}
    )
