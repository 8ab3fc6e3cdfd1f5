"""Members of a component that are those of another one inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.lib import wiring

__all__ = ["expose"]


def expose(m: Any, outer: Any, inner: Any, members: Mapping[str, wiring.Member]) -> None:
    """Connects the ``members`` of ``inner`` with those of the same names of ``outer``."""
    for name, member in members.items():
        _join(m, member, getattr(outer, name), getattr(inner, name))


def _join(m: Any, member: wiring.Member, outer: Any, inner: Any) -> None:
    if isinstance(outer, Sequence):  # an array
        for pair in zip(outer, inner, strict=True):
            _join(m, member, *pair)
    elif member.is_signature:
        wiring.connect(m, inner, wiring.flipped(outer))
    elif member.flow is wiring.Out:
        m.d.comb += outer.eq(inner)
    else:
        m.d.comb += inner.eq(outer)
