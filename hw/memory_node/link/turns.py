"""Who has its turn."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Signal

__all__ = ["next_in_turn"]


def next_in_turn(m: Any, requests: Any, last: Any, *, name: str) -> Any:
    """The number of the first request after ``last``, round and round; without any, the one after
    ``last``."""
    count = len(requests)
    chosen = Signal(range(count), name=name)
    with m.Switch(last):
        for before in range(count):
            with m.Case(before):
                m.d.comb += chosen.eq((before + 1) % count)
                # The last assignment counts, so the nearest comes last.
                for distance in range(count, 0, -1):
                    number = (before + distance) % count
                    with m.If(requests[number]):
                        m.d.comb += chosen.eq(number)
    return chosen
