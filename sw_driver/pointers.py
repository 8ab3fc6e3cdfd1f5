"""Pointers into the memory of a channel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index

__all__ = ["AxdimmPointer"]


@dataclass(frozen=True, kw_only=True)
class AxdimmPointer:
    """A place in an allocation; ``pointer + offset`` is the place ``offset`` bytes on.

    As in C, a pointer may be moved out of its allocation; using it there is refused.
    """

    channel: int
    address: int
    """Byte address in the channel."""
    nbytes: int
    """Bytes from here to the end of the allocation."""
    allocation: int
    """Number of the allocation, never used twice."""
    device: int
    """Number of the opened device that made the pointer."""

    def __add__(self, offset: int) -> AxdimmPointer:
        step = index(offset)
        return replace(self, address=self.address + step, nbytes=self.nbytes - step)

    __radd__ = __add__

    def __sub__(self, offset: int) -> AxdimmPointer:
        return self + -index(offset)
