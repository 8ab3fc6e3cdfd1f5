"""Connection of a component's members with those of a component inside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amaranth.lib import wiring

__all__ = ["expose"]


def expose(m: Any, outer: Any, inner: Any, names: Iterable[str]) -> None:
    """Connect the members of ``outer`` that have these names with those of ``inner``."""
    # Amaranth does not connect interfaces that hold arrays of interfaces.
    signature = wiring.Signature({name: outer.signature.members[name] for name in names})
    pairs = zip(signature.flatten(inner), signature.flatten(outer), strict=True)
    for (_, member, inside), (_, _, outside) in pairs:
        target, source = (outside, inside) if member.flow is wiring.Out else (inside, outside)
        m.d.comb += target.eq(source)
