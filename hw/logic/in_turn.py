"""Round-robin choice among requests."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Signal

__all__ = ["next_in_turn", "round_robin"]


def next_in_turn(m: Any, last: Any, asking: Any) -> Any:
    """Return the number of the next set bit of ``asking`` after ``last``, which comes last.

    The result is ``last`` if no bit is set.
    """
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
    """Return the number of a set bit of ``asking``, chosen round-robin.

    The search starts after the bit chosen in the last cycle with ``advance``. The result has no
    meaning if no bit is set.
    """
    last = Signal(range(len(asking)), init=len(asking) - 1)
    chosen = next_in_turn(m, last, asking)
    with m.If(advance):
        m.d.sync += last.eq(chosen)
    return chosen
