"""Floating-point unit of the programmable PIM, on the custom-function port of its core."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import C, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.float.add import FloatAdd
from hw.float.compare import FloatCompare
from hw.float.div_sqrt import FloatDivSqrt
from hw.float.format import FP32
from hw.float.integer import FloatFromInteger, FloatToInteger
from hw.float.maximum import FloatMaximum
from hw.float.mul import FloatMul
from hw.float.parts import Bits, cat, register

__all__ = ["FloatUnit"]

_STAGES = 5
"""Stages of multiplier and of adder: as in the pools, so that one clock suits both."""


class FloatUnit(wiring.Component):
    """FP32 arithmetic for a core, one operation at a time; the core waits for the result.

    ====== ====== ====== =========================================================================
    funct7 funct3 cycles result
    ====== ====== ====== =========================================================================
    0      0, 1   6      ``a + b``, ``a - b``
    1      0      6      ``a * b``
    2      0, 1   31     ``a / b``, the square root of ``a``; see
                         :class:`~hw.float.div_sqrt.FloatDivSqrt`
    3      0 to 2 2      1 or 0: ``a <= b``, ``a < b``, ``a == b``
    4      0, 1   2      minimum, maximum: a NaN if one is, +0 above -0
    5      0, 1   4      ``a`` as a signed integer, to nearest even, toward zero; see
                         :class:`~hw.float.integer.FloatToInteger`
    6      0      4      the signed integer ``a`` as a number, to nearest even
    ====== ====== ====== =========================================================================

    Cycles count from the cycle that takes the operation to that of its result. Other functions have
    a meaningless result.

    Members
    -------
    i_valid, i_ready, i_function, i_a, i_b : In(1), Out(1), In(10), In(32), In(32)
        An operation: ``funct7`` above the three bits of ``funct3``, and its operands.
    o_valid, o_ready, o_y : Out(1), In(1), Out(32)
        The result, which stays until it is taken.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "i_valid": In(1),
                "i_ready": Out(1),
                "i_function": In(10),
                "i_a": In(32),
                "i_b": In(32),
                "o_valid": Out(1),
                "o_ready": In(1),
                "o_y": Out(32),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.add = add = FloatAdd(stages=_STAGES)
        m.submodules.mul = mul = FloatMul(stages=_STAGES)
        m.submodules.div_sqrt = div_sqrt = FloatDivSqrt()
        m.submodules.compare = compare = FloatCompare()
        m.submodules.maximum = maximum = FloatMaximum()
        m.submodules.to_integer = to_integer = FloatToInteger()
        m.submodules.from_integer = from_integer = FloatFromInteger()

        busy = Signal()
        taken, done = self.i_valid & self.i_ready, self.o_valid & self.o_ready
        m.d.comb += self.i_ready.eq(~busy | done)
        m.d.sync += busy.eq(taken | (busy & ~done))
        with m.If(done):
            m.d.sync += self.o_valid.eq(0)

        option, group = self.i_function[:2], self.i_function[3:6]
        # The option of the previous cycle, for operations that take one cycle.
        later: Bits = register(m, option, "later")
        less, equal = compare.o_y[0], compare.o_y[1]
        # The minimum is the maximum with all signs inverted, except for a NaN.
        invert = ~later[0] & (maximum.o_y[:-1] != FP32.canonical_nan)
        units: list[tuple[Any, Bits]] = [
            (add, add.o_y),
            (mul, mul.o_y),
            (div_sqrt, div_sqrt.o_y),
            (compare, Mux(later[1], equal, less | (equal & ~later[0]))),
            (maximum, cat(maximum.o_y[:-1], maximum.o_y[-1] ^ invert)),
            (to_integer, to_integer.o_y),
            (from_integer, from_integer.o_y),
        ]
        for number, (unit, result) in enumerate(units):
            # Unknown groups go to the last unit, so that every operation is answered.
            last = number == len(units) - 1
            m.d.comb += unit.i_valid.eq(taken & ((group >= number) if last else (group == number)))
            m.d.comb += unit.i_a.eq(self.i_a)
            with m.If(unit.o_valid):
                m.d.sync += [self.o_valid.eq(1), self.o_y.eq(result)]
        sign = C(1 << 31, 32)
        m.d.comb += [
            add.i_b.eq(self.i_b ^ Mux(option[0], sign, 0)),
            mul.i_b.eq(self.i_b),
            div_sqrt.i_root.eq(option[0]),
            div_sqrt.i_b.eq(self.i_b),
            compare.i_b.eq(self.i_b),
            maximum.i_a.eq(self.i_a ^ Mux(option[0], 0, sign)),
            maximum.i_b.eq(self.i_b ^ Mux(option[0], 0, sign)),
            to_integer.i_b.eq(option[0]),
        ]
        return m
