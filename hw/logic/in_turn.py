"""A choice among several that ask, each in its turn."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Signal

__all__ = ["next_in_turn", "round_robin"]


def next_in_turn(m: Any, last: Any, asking: Any) -> Any:
    """The number of the next bit of ``asking`` after ``last`` that is set, ``last`` itself the last
    of all; ``last`` if none is."""
    chosen = Signal.like(last)
    m.d.comb += chosen.eq(last)
    with m.Switch(last):
        for before in range(len(asking)):
            with m.Case(before):
                for step in range(len(asking), 0, -1):
                    number = (before + step) % len(asking)
                    with m.If(asking[number]):
                        m.d.comb += chosen.eq(number)
    return chosen


def round_robin(m: Any, asking: Any, *, advance: Any) -> Any:
    """The number of a bit of ``asking`` that is set: the next after that of the last cycle in which
    ``advance`` was. Without one it means nothing."""
    last = Signal(range(len(asking)), init=len(asking) - 1)
    chosen = next_in_turn(m, last, asking)
    with m.If(advance):
        m.d.sync += last.eq(chosen)
    return chosen
