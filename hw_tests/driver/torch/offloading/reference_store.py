"""Comparison of bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["same"]


def same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether they are equal in every bit."""
    return np.array_equal(one.ravel().view(np.uint32), other.ravel().view(np.uint32))
