"""One-hot selection among constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat

__all__ = ["selected"]


def selected(numbers: Sequence[int], one_hot: Any) -> Any:
    """Return the entry of ``numbers`` that the one-hot value selects; 0 if no bit is set."""
    return Cat(
        Cat(one_hot[index] for index, number in enumerate(numbers) if number >> bit & 1).any()
        for bit in range(max(numbers).bit_length())
    )
