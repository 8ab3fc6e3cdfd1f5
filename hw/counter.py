"""Counts of what is under way."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Signal

__all__ = ["step"]


def step(m: Any, counter: Signal, *, up: Any, down: Any) -> None:
    """Counts up, down or not at all; no sum waits for the flags, which may come late."""
    with m.If(up & ~down):
        m.d.sync += counter.eq(counter + 1)
    with m.Elif(down & ~up):
        m.d.sync += counter.eq(counter - 1)
