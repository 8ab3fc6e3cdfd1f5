"""Conversion between floating-point numbers and two's complement integers of the same width."""

from __future__ import annotations

from typing import ClassVar

from amaranth.hdl import C, Module, Mux
from amaranth.utils import bits_for

from hw.float.operator import FloatOperator
from hw.float.parts import (
    Bits,
    Unpacked,
    carry,
    cat,
    leading_zeros,
    mask_below,
    register,
    round_and_pack,
    saturate,
    wire,
)

__all__ = ["FloatFromInteger", "FloatToInteger"]


class FloatFromInteger(FloatOperator):
    """The integer ``a`` as a number, three cycles."""

    operation = "from_integer"
    operands = ("a",)
    cuts: ClassVar = {3: ("count", "shift")}

    def datapath(self, m: Module) -> Bits:
        fmt = self.format
        sign = self.i_a[-1]
        magnitude = wire(m, Mux(sign, -self.i_a, self.i_a)[: fmt.width], "magnitude")
        zeros = register(m, leading_zeros(m, magnitude, "leading"), "zeros")
        magnitude = register(m, magnitude, "counted")
        word = register(m, (magnitude << zeros)[: fmt.width], "word")
        return round_and_pack(
            m,
            fmt,
            sign=register(m, register(m, sign, "sign_1"), "sign_2"),
            nan=C(0, 1),
            special=C(0, 1),
            exponent=register(m, fmt.bias + fmt.width - 1 - zeros, "exponent").as_unsigned(),
            significand=word[-fmt.significand_bits :],
            tail=word[: -fmt.significand_bits],
            cycles=0,
        )


class FloatToInteger(FloatOperator):
    """``a`` rounded to an integer, to nearest even or, if ``b`` is odd, toward zero; three cycles.

    A number that is too large becomes the nearest integer in range, and a NaN the largest integer,
    as in RISC-V.
    """

    operation = "to_integer"
    cuts: ClassVar = {3: ("shift", "round")}

    def datapath(self, m: Module) -> Bits:
        fmt = self.format
        width = fmt.width
        a = Unpacked(m, fmt, self.i_a, "a")
        # The significand starts at the top and shifts right; two bits stay below the point.
        top = cat(C(0, width - fmt.significand_bits + 2), a.cleared)
        distance = wire(m, fmt.bias + width - 1 - a.exponent, "distance")
        shift = wire(m, saturate(distance[:-1], bits_for(width + 2)), "shift")
        side = carry(
            m,
            1,
            "side",
            sign=a.sign,
            nan=a.nan,
            large=a.special | (distance < 0),
            lost=(top & mask_below(shift, width + 2)).any(),
            nearest=~self.i_b[0],
        )
        word = register(m, top >> shift, "word")
        up = side.nearest & word[1] & (word[0] | side.lost | word[2])
        magnitude = register(m, (word[2:] + up)[:width], "magnitude")
        side = carry(m, 1, "rounded", sign=side.sign, nan=side.nan, large=side.large)
        least = C(1 << (width - 1), width)
        large = side.large | magnitude[-1]
        number = Mux(side.sign, -magnitude, magnitude)[:width]
        return Mux(large, Mux(side.sign & ~side.nan, least, ~least), number)
