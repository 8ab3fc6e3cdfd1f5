"""The larger of two floating-point numbers."""

from __future__ import annotations

from amaranth.hdl import C, Module, Mux

from hw.float.operator import FloatOperator
from hw.float.parts import Bits, Unpacked, cat, wire

__all__ = ["FloatMaximum"]


class FloatMaximum(FloatOperator):
    """``maximum(a, b)`` of IEEE 754-2019 (clause 9.6), one cycle: a NaN if one is, +0 above -0."""

    operation = "maximum"

    def datapath(self, m: Module) -> Bits:
        a, b = Unpacked(m, self.format, self.i_a, "a"), Unpacked(m, self.format, self.i_b, "b")
        # The larger of two negative numbers has the smaller magnitude.
        larger = wire(m, a.magnitude > b.magnitude, "larger")
        same_sign = wire(m, a.sign == b.sign, "same_sign")
        take_a = Mux(same_sign, larger ^ a.sign, ~a.sign)
        nan = C(self.format.canonical_nan, self.format.width)
        if self.format.subnormals:
            larger_one = Mux(take_a, self.i_a, self.i_b)
        else:
            larger_one = cat(
                Mux(take_a, a.cleared, b.cleared)[:-1],
                Mux(take_a, a.field, b.field),
                Mux(take_a, a.sign, b.sign),
            )
        return Mux(a.nan | b.nan, nan, larger_one)
