"""Takes turns."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, Value

__all__ = ["round_robin"]


def round_robin(m: Any, requests: Value, *, advance: Any) -> Signal:
    """The number of one of ``requests`` (meaningless if none is set): the next after that of the
    last cycle in which ``advance`` was set."""
    assert isinstance(m, Module)
    count = len(requests)
    chosen = Signal(range(count))
    last = Signal(range(count), init=count - 1)
    with m.Switch(last):
        for before in range(count):
            with m.Case(before):
                for distance in range(count, 0, -1):
                    number = (before + distance) % count
                    with m.If(requests[number]):
                        m.d.comb += chosen.eq(number)
    with m.If(advance):
        m.d.sync += last.eq(chosen)
    return chosen
