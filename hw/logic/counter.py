"""Counts of what is under way."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Signal

__all__ = ["step", "under_way"]


def step(m: Any, counter: Signal, *, up: Any, down: Any) -> None:
    """Counts up, down or not at all; no sum waits for the flags, which may come late."""
    with m.If(up & ~down):
        m.d.sync += counter.eq(counter + 1)
    with m.Elif(down & ~up):
        m.d.sync += counter.eq(counter - 1)


def under_way(m: Any, name: str, most: int, *, begun: Any, ended: Any) -> tuple[Signal, Signal]:
    """How many of something, up to ``most``, are under way, and whether none is: a flip-flop."""
    count = Signal(range(most + 1), name=name)
    none = Signal(name=f"no_{name}", init=1)
    step(m, count, up=begun, down=ended)
    with m.If(begun & ~ended):
        m.d.sync += none.eq(0)
    with m.Elif(ended & ~begun):
        m.d.sync += none.eq(count == 1)
    return count, none
