"""Choice of idle banks for a work."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import PimConfig
from hw.pim.selected import selected

__all__ = ["UNITS_BITS", "BankChoice"]

UNITS_BITS = 11
"""Width of a count of units."""


class BankChoice(wiring.Component):
    """Chooser of banks for a work (docs/pim-spec.md, "The pool").

    It picks one bank per cycle. If the work names its banks, it takes them all at once.

    Parameters
    ----------
    config
        The banks and their units.

    Members
    -------
    start : In(1)
        Pulse: begin a choice with the inputs below.
    named : In(config.banks)
        Banks that the work names, a bit for each. If 0, ``units`` decides.
    near : In(config.banks)
        Banks that the work's tensors touch.
    idle : In(config.banks)
        Banks that may be chosen.
    units : In(UNITS_BITS)
        Units that the work needs.
    busy : Out(1)
        High from the cycle after ``start`` until the choice is made.
    banks : Out(config.banks)
        The choice, which stays; 0 if the work must wait.
    left : Out(UNITS_BITS)
        Units that are missing from the choice.
    """

    def __init__(self, config: PimConfig) -> None:
        self._units = config.placement.units
        banks = config.banks
        super().__init__(
            {
                "start": In(1),
                "named": In(banks),
                "near": In(banks),
                "idle": In(banks),
                "units": In(UNITS_BITS),
                "busy": Out(1),
                "banks": Out(banks),
                "left": Out(UNITS_BITS),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        near, far = Signal.like(self.near), Signal.like(self.near)
        candidates, pick = Signal.like(near), Signal.like(near)
        m.d.comb += [
            self.busy.eq((self.left != 0) & (near | far).any()),
            candidates.eq(Mux(near.any(), near, far)),
            pick.eq(candidates & -candidates),  # the lowest set bit
        ]
        units = Signal(UNITS_BITS)
        m.d.comb += units.eq(selected(self._units, pick))
        with m.If(self.start):
            with m.If(self.named.any()):
                m.d.sync += [
                    self.left.eq(0),
                    self.banks.eq(Mux((self.named & ~self.idle).any(), 0, self.named)),
                ]
            with m.Else():
                m.d.sync += [self.left.eq(self.units), self.banks.eq(0)]
            m.d.sync += [near.eq(self.idle & self.near), far.eq(self.idle & ~self.near)]
        with m.Elif(self.busy):
            m.d.sync += [
                self.banks.eq(self.banks | pick),
                near.eq(near & ~pick),
                far.eq(far & ~pick),
                self.left.eq(Mux(units < self.left, self.left - units, 0)),
            ]
        return m
