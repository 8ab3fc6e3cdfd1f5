"""A choice among several that ask, each in its turn."""

from __future__ import annotations

from typing import Any

__all__ = ["take_turns"]


def take_turns(m: Any, chosen: Any, asking: Any) -> None:
    """Where it stands in ``m``, makes ``chosen`` the next after it that is ``asking``, itself last.

    ``asking`` has a bit for each value of ``chosen``; if none is set, ``chosen`` stays.
    """
    with m.Switch(chosen):
        for last in range(len(asking)):
            with m.Case(last):
                for step in range(len(asking), 0, -1):
                    other = (last + step) % len(asking)
                    with m.If(asking[other]):
                        m.d.sync += chosen.eq(other)
