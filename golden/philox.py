"""Philox4x32-10, the generator of random numbers from counters (Salmon et al., SC 2011)."""

from __future__ import annotations

from typing import Any

__all__ = ["philox"]


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Return four random words of 32 bits from a counter of four words and a key of two.

    A word of the counter is an integer or an array of ``uint64``, and so are the results.
    """
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = right >> 32 ^ b ^ k, right & 0xFFFFFFFF, left >> 32 ^ d ^ m, left & 0xFFFFFFFF
        k, m = (k + 0x9E3779B9) & 0xFFFFFFFF, (m + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d
