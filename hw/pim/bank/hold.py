"""Registers that take a set of values at once, and keep them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from amaranth.hdl import Shape, Signal

__all__ = ["hold"]


def hold(m: Any, when: Any, name: str, **values: Any) -> Any:
    """The ``values`` of the last cycle with ``when``, from the next one on, as attributes.

    Each is in a register of its own, without reset: to simulate, one wide register that is taken
    apart again costs several times as much.
    """
    registers = {
        key: Signal(Shape.cast(value.shape()), name=f"{name}_{key}", reset_less=True)
        for key, value in values.items()
    }
    with m.If(when):
        m.d.sync += [registers[key].eq(value) for key, value in values.items()]
    return SimpleNamespace(**registers)
