"""Sign of a floating-point number, as a number."""

from __future__ import annotations

from amaranth.hdl import C, Module, Mux

from hw.float.operator import FloatOperator
from hw.float.parts import Bits, Unpacked, cat

__all__ = ["FloatSign"]


class FloatSign(FloatOperator):
    """1 or -1 with the sign of ``a``, one cycle; a zero stays as it is, and a NaN a NaN."""

    operation = "sign"
    operands = ("a",)

    def datapath(self, m: Module) -> Bits:
        fmt = self.format
        a = Unpacked(m, fmt, self.i_a, "a")
        one = C(fmt.bias << fmt.fraction_bits, fmt.width - 1)
        magnitude = Mux(a.zero, C(0, fmt.width - 1), one)
        return Mux(a.nan, C(fmt.canonical_nan, fmt.width), cat(magnitude, a.sign))
