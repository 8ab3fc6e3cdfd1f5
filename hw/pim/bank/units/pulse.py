"""A bit, some cycles later."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Signal

__all__ = ["delayed_pulse"]


def delayed_pulse(m: Any, pulse: Any, cycles: int, name: str) -> Any:
    """The bit ``pulse`` later by ``cycles``; a reset clears what is on its way."""
    history = Signal(cycles, name=name)
    m.d.sync += history.eq(Cat(pulse, history))
    return history[-1]
