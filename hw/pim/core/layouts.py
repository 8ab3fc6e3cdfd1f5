"""Layouts between registers and cores."""

from __future__ import annotations

from functools import cache

from amaranth.lib import data, enum

__all__ = [
    "CoreCause",
    "core_control_layout",
    "core_status_layout",
]


class CoreCause(enum.Enum, shape=4):
    """Cause of a core's stop."""

    NONE = 0
    UNMAPPED = 1
    """Access to an address without memory or register."""
    WINDOW = 2
    """Access beyond the size of its window."""
    MEMORY = 3
    """Access through a window to an address that no bank holds."""
    REGISTER = 4
    """Write to a register that the core may not write, or not in this way."""
    LIMIT = 5
    """Cycles without idling reached the limit."""
    STOP = 6
    """Stop by the firmware."""
    RING = 7
    """More descriptors in the core's ring than slots."""


@cache
def core_control_layout() -> data.StructLayout:
    """Return the layout of the host's control of a core.

    ``base`` and ``size`` of window 0 are in beats, ``limit`` is in cycles. ``head`` counts the
    kernels that the host has requested.
    """
    return data.StructLayout({"run": 1, "base": 32, "size": 32, "limit": 32, "head": 16})


@cache
def core_status_layout() -> data.StructLayout:
    """Return the layout of a core's status for the host.

    ``tail`` counts the kernels that are done. ``cause`` and ``address`` describe the core's stop;
    ``reason`` is the firmware's.
    """
    return data.StructLayout(
        {"running": 1, "idle": 1, "tail": 16, "cause": CoreCause, "reason": 8, "address": 32}
    )
