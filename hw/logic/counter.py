"""Counters of items in flight."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Signal

__all__ = ["step", "under_way"]


def step(m: Any, counter: Signal, *, up: Any, down: Any) -> None:
    """Count up, down or not at all; the flags may come late, as no adder waits for them."""
    with m.If(up & ~down):
        m.d.sync += counter.eq(counter + 1)
    with m.Elif(down & ~up):
        m.d.sync += counter.eq(counter - 1)


def under_way(m: Any, name: str, most: int, *, begun: Any, ended: Any) -> tuple[Signal, Signal]:
    """Return the number of items in flight, up to ``most``, and a flip-flop set if it is zero."""
    count = Signal(range(most + 1), name=name)
    none = Signal(name=f"no_{name}", init=1)
    step(m, count, up=begun, down=ended)
    with m.If(begun & ~ended):
        m.d.sync += none.eq(0)
    with m.Elif(ended & ~begun):
        m.d.sync += none.eq(count == 1)
    return count, none
