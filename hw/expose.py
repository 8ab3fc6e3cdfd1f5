"""Members of a component that are those of another one inside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.lib import wiring

__all__ = ["expose"]


def expose(m: Any, outer: Any, inner: Any, members: Mapping[str, wiring.Member]) -> None:
    """Connects the ``members`` of ``inner`` with those of the same names of ``outer``.

    Those that are ports and no interfaces must be outputs.
    """
    for name, member in members.items():
        if member.is_port:
            m.d.comb += getattr(outer, name).eq(getattr(inner, name))
        else:
            wiring.connect(m, getattr(inner, name), wiring.flipped(getattr(outer, name)))
