"""Replacement of a functional unit for simulations of time only."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring

from hw.dataflow.unit import UnitSignature
from hw.logic.delay import shared_delay
from hw.rules.update_rule import UpdateRule

__all__ = ["DelayUnit"]


class DelayUnit(wiring.Component):
    """Gives operands back after the latency of the unit of ``rule``, for simulation only.

    A kernel with it takes exactly the cycles of one with :class:`~hw.kernel.unit.RuleUnit`, at a
    fraction of the time to build and to simulate. The members are those of a
    :class:`~hw.dataflow.unit.UnitSignature` without constants.
    """

    def __init__(self, rule: UpdateRule) -> None:
        self.latency = rule.latency
        """Cycles from operands to results."""
        self.module_name = f"{rule.name}_delay"
        """Name of the Verilog module."""
        self._inputs = rule.inputs
        self._outputs = (*rule.outputs, *rule.sums)
        super().__init__(UnitSignature(inputs=self._inputs, outputs=self._outputs))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        valid = Signal(self.latency)
        valid_at = Cat(self.i_valid, valid)
        m.d.sync += valid.eq(valid_at)
        m.d.comb += self.o_valid.eq(valid_at[-1])
        given = [name for name in self._outputs if name in self._inputs]
        if not given or not self.latency:
            return m
        m.submodules.delay = delay = shared_delay(width=32 * len(given), cycles=self.latency)
        m.d.comb += [
            delay.i.eq(Cat(getattr(self, f"i_{name}") for name in given)),
            Cat(getattr(self, f"o_{name}") for name in given).eq(delay.o),
        ]
        return m
