"""A choice by a bit for each that can be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat

__all__ = ["selected"]


def selected(numbers: Sequence[int], one_hot: Any) -> Any:
    """That of the ``numbers`` whose bit is set; 0 if none is."""
    return Cat(
        Cat(one_hot[index] for index, number in enumerate(numbers) if number >> bit & 1).any()
        for bit in range(max(numbers).bit_length())
    )
