"""Pointers into the four kinds of memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index
from typing import Self

__all__ = ["AxdimmPointer", "GpuPointer", "HostPointer", "NvmePointer", "Pointer"]


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """A place in an allocation; ``pointer + offset`` is the place ``offset`` bytes on.

    As in C, a pointer may be moved out of its allocation; using it there is refused.
    """

    channel: int
    """Number of the channel, GPU or storage that the pointer is into: see the kinds of pointers."""
    address: int
    """Byte address in the memory it points into."""
    nbytes: int
    """Bytes from here to the end of the allocation."""
    allocation: int
    """Number of the allocation, never used twice."""
    device: int
    """Number of the opened device that made the pointer."""

    def __add__(self, offset: int) -> Self:
        step = index(offset)
        return replace(self, address=self.address + step, nbytes=self.nbytes - step)

    __radd__ = __add__

    def __sub__(self, offset: int) -> Self:
        return self + -index(offset)


class AxdimmPointer(Pointer):
    """A pointer into the DRAM of the module's channel ``channel``."""


class HostPointer(Pointer):
    """A pointer into memory of the host; ``channel`` is 0."""


class GpuPointer(Pointer):
    """A pointer into the memory of GPU ``channel``."""


class NvmePointer(Pointer):
    """A pointer into registered storage: device ``channel``, or -1 for striped over several.

    ``address`` counts within the allocation's memory: for a striped one, as if it were one piece.
    """
