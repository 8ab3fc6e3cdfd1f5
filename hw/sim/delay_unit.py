"""A stand-in for the Adam unit where only time matters."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.adam.rule import INPUTS, OUTPUTS
from hw.delay import shared_delay

__all__ = ["DelayUnit"]


class DelayUnit(wiring.Component):
    """Gives its operands back after ``latency`` cycles, for simulation only.

    In place of :class:`hw.adam.unit.AdamUnit` with its latency, a kernel takes the same cycles to
    the last one, at a fraction of the time to build and to simulate.

    Members
    -------
    ``i_valid``, ``i_p``, ``i_g``, ``i_m``, ``i_v``: In
    ``o_valid``, ``o_p``, ``o_m``, ``o_v``: Out
    """

    i_valid: Any
    o_valid: Any

    def __init__(self, *, latency: int) -> None:
        if latency < 1:
            raise ValueError(f"latency must be at least 1 cycle, got {latency!r}")
        self._latency = latency
        super().__init__(
            {
                "i_valid": In(1),
                **{f"i_{name}": In(32) for name in INPUTS},
                "o_valid": Out(1),
                **{f"o_{name}": Out(32) for name in OUTPUTS},
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from operands to results."""
        return self._latency

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        valid = Signal(self._latency)
        m.d.sync += valid.eq(Cat(self.i_valid, valid))
        m.d.comb += self.o_valid.eq(valid[-1])
        m.submodules.delay = delay = shared_delay(width=32 * len(OUTPUTS), cycles=self._latency)
        m.d.comb += [
            delay.i.eq(Cat(getattr(self, f"i_{name}") for name in OUTPUTS)),
            Cat(getattr(self, f"o_{name}") for name in OUTPUTS).eq(delay.o),
        ]
        return m
