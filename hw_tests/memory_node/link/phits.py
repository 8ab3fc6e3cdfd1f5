"""Phits of flits and flits of phits (docs/memory-node-spec.md, "The wire")."""

from __future__ import annotations

from typing import NamedTuple

from .flit import FLIT_BYTES, Flit

__all__ = ["Phit", "PhitReader", "phits_of"]


class Phit(NamedTuple):
    """What the wire carries in a cycle in which it is valid."""

    first: bool
    data: bytes


def phits_of(flit: bytes, phit_bytes: int) -> list[Phit]:
    """The phits of a flit's bytes, in their order."""
    return [Phit(at == 0, flit[at : at + phit_bytes]) for at in range(0, len(flit), phit_bytes)]


class PhitReader:
    """Puts flits together again."""

    def __init__(self) -> None:
        self._come: bytes | None = None
        """Bytes that have come of the flit that has begun; None if none has."""

    @property
    def within(self) -> bool:
        """Whether a flit has begun and is not complete."""
        return self._come is not None

    def read(self, phit: Phit) -> list[Flit | None]:
        """What a phit ends: a flit, or None for one that is wrong or was not completed."""
        found: list[Flit | None] = []
        if phit.first:
            if self.within:
                found.append(None)
            self._come = b""
        if self._come is None:
            return found
        self._come += phit.data
        if len(self._come) == FLIT_BYTES:
            found.append(Flit.decode(self._come))
            self._come = None
        return found
