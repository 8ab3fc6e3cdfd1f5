"""Where the bytes of an allocation are that is spread over several storages.

Stripe unit n is on storage n modulo their number; on each the units follow without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["STRIPE_BYTES", "share_bytes", "stripes"]

STRIPE_BYTES = 128 * 1024
"""Bytes of a stripe unit, which lies in one piece on a storage."""


def stripes(start: int, end: int, members: int) -> Iterator[tuple[int, int, int]]:
    """The pieces of an allocation's bytes from ``start`` to ``end``, in their order.

    Of each the number of its storage of ``members``, where it begins in the share that the
    allocation has there, and its size.
    """
    while start < end:
        unit, within = divmod(start, STRIPE_BYTES)
        nbytes = min(STRIPE_BYTES - within, end - start) if members > 1 else end - start
        yield unit % members, share_bytes(start, unit % members, members), nbytes
        start += nbytes


def share_bytes(end: int, member: int, members: int) -> int:
    """How many of the first ``end`` bytes are on storage ``member`` of ``members``."""
    rounds, rest = divmod(end, STRIPE_BYTES * members)
    return rounds * STRIPE_BYTES + min(max(rest - member * STRIPE_BYTES, 0), STRIPE_BYTES)
