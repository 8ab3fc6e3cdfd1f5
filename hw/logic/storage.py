"""Attributes of memories for synthesis."""

from __future__ import annotations

__all__ = ["NEVER_BOTH"]

NEVER_BOTH = {"no_rw_check": 1}
"""Attributes of a memory where a word read in the cycle of its write is never used.

Without them Yosys adds registers, comparators and multiplexers around a block RAM that would not
give the old word then.
"""
