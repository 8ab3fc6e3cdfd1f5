"""BF16 from FP32. In the other direction, a BF16 number is the upper half of one in FP32."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import C, Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.float.format import FP32, FloatFormat
from hw.float.parts import Unpacked, cat, delayed_pulse, register

__all__ = ["ToBf16"]

_CANONICAL_NAN = FloatFormat(exponent_bits=8, fraction_bits=7).canonical_nan


class ToBf16(wiring.Component):
    """``a`` in BF16, rounded to nearest even or stochastically, one cycle.

    Stochastic rounding takes the next larger magnitude with a probability equal to the fraction
    beyond the lower one, in steps of 1/65,536. In both modes a result beyond the largest number is
    infinite, and a NaN becomes the canonical one.

    Members
    -------
    i_valid, i_a, i_random : In(1), In(32), In(16)
        Operand, and a random number, each of 65,536 as likely.
    stochastic : In(1)
        Round stochastically; otherwise ``i_random`` is not looked at. Must hold still while numbers
        are in flight.
    o_valid, o_y : Out(1), Out(16)
        Result.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> tie = {"i_valid": 1, "i_a": 0x3F80_8000}
    >>> hex(outputs(ToBf16(), ToBf16.latency, **tie)["o_y"])
    '0x3f80'
    >>> hex(outputs(ToBf16(), ToBf16.latency, **tie, stochastic=1, i_random=0x8000)["o_y"])
    '0x3f81'
    """

    latency = 1
    module_name = "fp32_to_bf16"

    def __init__(self) -> None:
        super().__init__(
            {
                "i_valid": In(1),
                "i_a": In(FP32.width),
                "i_random": In(16),
                "stochastic": In(1),
                "o_valid": Out(1),
                "o_y": Out(16),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        a = Unpacked(m, FP32, self.i_a, "a")
        # To nearest: add a little less than half a unit, or half a unit if the last bit is odd. No
        # addend carries out of an infinity, or beyond it.
        to_nearest = 0x7FFF + self.i_a[16]
        magnitude = (a.magnitude + Mux(self.stochastic, self.i_random, to_nearest))[16:31]
        y = Mux(a.nan, C(_CANONICAL_NAN, 16), cat(magnitude, a.sign))
        m.d.comb += [
            self.o_y.eq(register(m, y, "y")),
            self.o_valid.eq(delayed_pulse(m, self.i_valid, 1, "valid")),
        ]
        return m
