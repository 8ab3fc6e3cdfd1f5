"""Allocator of a channel's memory, which staggers tensors over the banks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..device.memory import Allocator
from .transport import WINDOW_BYTES, kernel_window

__all__ = [
    "BANK_BLOCK_BYTES",
    "BANK_PAIRS",
    "PAIR_STRIDE",
    "ChannelAllocator",
    "channel_memory",
    "least_capacity_bytes",
]

BANK_BLOCK_BYTES = 16 * 1024
"""Bytes of an aligned block in one pair of banks: two rows in two bank groups."""

BANK_PAIRS = 8
"""Pairs of banks of a channel; consecutive blocks cycle through them."""

PAIR_STRIDE = 2
"""Distance between staggered tensors, in pairs of banks.

A run loads block k of its four tensors and stores block k-1 of three. If the tensors are two pairs
apart, loads use pairs of one parity and stores pairs of the other. No two of the seven blocks share
a bank.
"""


class ChannelAllocator(Allocator):
    """Allocator of a channel's memory, in 64-byte lines.

    Allocations of :data:`BANK_BLOCK_BYTES` or more start on a bank block. With ``stagger`` each
    starts :data:`PAIR_STRIDE` pairs after the one before it, where space allows. Otherwise any
    place is taken, so staggering never makes an allocation fail. Among equally good places the
    lowest address is taken.

    Parameters
    ----------
    limit_bytes: size of the memory, a positive multiple of 64.
    stagger: True to rotate large allocations over the pairs of banks.
    settings: those of :class:`~sw_driver.device.memory.Allocator` for its messages.

    Examples
    --------
    >>> memory = ChannelAllocator(limit_bytes=1 << 20)
    >>> memory.allocate(100), memory.allocate(100)
    (0, 128)
    >>> [memory.allocate(1 << 16) for _ in range(3)]  # each begins in other banks
    [131072, 32768, 196608]
    >>> memory.statistics().allocations
    5
    """

    def __init__(self, *, limit_bytes: int, stagger: bool = True, **settings: Any) -> None:
        super().__init__(limit_bytes=limit_bytes, **settings)
        self._stagger = stagger
        self._next_pair = 0

    def _take(self, size: int) -> int | None:
        address = None
        if size >= BANK_BLOCK_BYTES:
            if self._stagger:
                phase = self._next_pair * BANK_BLOCK_BYTES
                address = self._take_at(size, period=BANK_PAIRS * BANK_BLOCK_BYTES, phase=phase)
                if address is not None:
                    self._next_pair = (self._next_pair + PAIR_STRIDE) % BANK_PAIRS
            if address is None:
                address = self._take_at(size, period=BANK_BLOCK_BYTES)
        return super()._take(size) if address is None else address


def channel_memory(capacity_bytes: int, *, stagger: bool = True) -> ChannelAllocator:
    """Return the allocator of a channel of ``capacity_bytes``, without the register windows."""
    return ChannelAllocator(
        limit_bytes=kernel_window(capacity_bytes),
        stagger=stagger,
        setting="capacity_bytes",
        least=_capacity_bytes,
    )


def least_capacity_bytes(sizes: Iterable[int]) -> int:
    """Return the smallest channel capacity that holds tensors of these sizes, all in bytes."""
    memory = ChannelAllocator(limit_bytes=1 << 62, stagger=False)
    return _capacity_bytes(max(memory.allocate(nbytes) + nbytes for nbytes in sizes))


def _capacity_bytes(limit_bytes: int) -> int:
    return 1 << (limit_bytes + 2 * WINDOW_BYTES - 1).bit_length()
