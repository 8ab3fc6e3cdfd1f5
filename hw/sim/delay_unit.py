"""A stand-in for the Adam unit where only time matters."""

from __future__ import annotations

import gc
import warnings
from functools import cache
from typing import Any

from amaranth.hdl import Cat, Module, Signal, UnusedElaboratable
from amaranth.lib import wiring

from hw.dataflow.unit import UnitSignature
from hw.delay import shared_delay
from hw.kernel.unit import AdamUnit
from hw.rules.adam import INPUTS, OUTPUTS

__all__ = ["DelayUnit"]


@cache
def _adam_latency() -> int:
    with warnings.catch_warnings():
        # It is made to be asked, not to be built, and complains of that when it is collected.
        warnings.simplefilter("ignore", UnusedElaboratable)
        latency = AdamUnit().latency
        gc.collect()
    return latency


class DelayUnit(wiring.Component):
    """Gives its operands back after the latency of the Adam unit, for simulation only.

    In place of :class:`~hw.kernel.unit.AdamUnit`, a kernel takes the same cycles to the last one,
    at a fraction of the time to build and to simulate. The members are those of a
    :class:`~hw.dataflow.unit.UnitSignature` without constants.
    """

    module_name = "delay_unit"
    """Name of the Verilog module."""

    def __init__(self) -> None:
        self.latency = _adam_latency()
        """Cycles from operands to results."""
        super().__init__(UnitSignature(inputs=INPUTS, outputs=OUTPUTS))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        valid = Signal(self.latency)
        m.d.sync += valid.eq(Cat(self.i_valid, valid))
        m.d.comb += self.o_valid.eq(valid[-1])
        m.submodules.delay = delay = shared_delay(width=32 * len(OUTPUTS), cycles=self.latency)
        m.d.comb += [
            delay.i.eq(Cat(getattr(self, f"i_{name}") for name in OUTPUTS)),
            Cat(getattr(self, f"o_{name}") for name in OUTPUTS).eq(delay.o),
        ]
        return m
