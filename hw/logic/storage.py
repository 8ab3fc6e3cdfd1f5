"""What synthesis may know of memories."""

from __future__ import annotations

__all__ = ["NEVER_BOTH"]

NEVER_BOTH = {"no_rw_check": 1}
"""Attributes of a memory of which no word is used that was read in the cycle of its writing.

Otherwise Yosys puts registers, comparators and multiplexers around a block RAM that would not give
the old word then.
"""
