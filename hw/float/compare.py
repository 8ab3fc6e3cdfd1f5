"""Comparison of two floating-point numbers."""

from __future__ import annotations

from amaranth.hdl import C, Module, Mux

from hw.float.operator import FloatOperator
from hw.float.parts import Bits, Unpacked, cat, wire

__all__ = ["FloatCompare"]


class FloatCompare(FloatOperator):
    """1 if ``a < b``, 2 if ``a`` equals ``b``, else 0; one cycle.

    Zeros of either sign are equal. With a NaN the result is 0.
    """

    operation = "compare"

    def datapath(self, m: Module) -> Bits:
        a, b = Unpacked(m, self.format, self.i_a, "a"), Unpacked(m, self.format, self.i_b, "b")
        ordered = ~(a.nan | b.nan)
        same = wire(m, (self.i_a == self.i_b) | (a.zero & b.zero), "same")
        smaller = a.magnitude < b.magnitude
        less = ~same & Mux(a.sign == b.sign, smaller ^ a.sign, a.sign)
        return cat(ordered & less, ordered & same, C(0, self.format.width - 2))
