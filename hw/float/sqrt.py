"""Floating-point square root."""

from __future__ import annotations

from amaranth.hdl import C, Module, Mux

from hw.float.format import FloatFormat
from hw.float.operator import FloatOperator
from hw.float.parts import (
    Bits,
    Unpacked,
    carry,
    cat,
    digit_depths,
    leading_zeros,
    register,
    round_and_pack,
    wire,
)

__all__ = ["FloatSqrt"]


class FloatSqrt(FloatOperator):
    """The square root of ``a``, up to four result bits a cycle (9 to 27 cycles for FP32).

    The root of -0 is -0; that of any other negative number is NaN.
    """

    operation = "sqrt"
    operands = ("a",)

    @classmethod
    def depths(cls, format: FloatFormat) -> dict[int, tuple[str, ...]]:
        return digit_depths(_digits(format), ("operand", "scaled"))

    def datapath(self, m: Module) -> Bits:
        fmt = self.format
        bits = fmt.significand_bits
        digits = [f"digit_{place}" for place in range(_digits(fmt))]

        a = Unpacked(m, fmt, self.i_a, "a")
        a_1 = register(m, a.significand, "a_1")
        zeros_1 = C(0)
        if fmt.subnormals:
            zeros_1 = register(m, leading_zeros(m, a.significand, "zeros"), "zeros_1")
        exponent_1 = register(m, a.exponent + fmt.bias, "exponent_1")
        side_1 = carry(
            m,
            1,
            "side_1",
            sign=a.sign & a.zero,
            nan=a.nan | (a.sign & ~a.zero),
            special=a.special | (a.sign & ~a.zero),
            nonzero=~a.zero,
        )

        # An even exponent leaves a radicand in [1, 4); its root is in [1, 2).
        exponent = wire(m, (exponent_1 - zeros_1)[: len(exponent_1)], "biased_twice")
        normalised = wire(m, (a_1 << zeros_1)[:bits], "normalised")
        radicand = Mux(exponent[0], cat(C(0, 1), normalised), normalised)
        # Fixed point: as many places after the point as the root has bits, and three before it.
        places = len(digits)
        scaled = cat(C(0, places - fmt.fraction_bits), radicand, C(0, 1))
        # Subtract the square of the root's leading bit.
        remainder: Bits = register(m, (scaled - (1 << places))[: places + 3], "remainder_2")
        side_2 = carry(m, 1, "side_2", exponent=exponent[1:], **vars(side_1))
        side = carry(m, self.cycles(*digits), "side", **vars(side_2))

        # The root Q has i bits after the point; the remainder is R = 2^i (radicand - Q^2). The next
        # bit is 1 if 2R - (2Q + 2^-(i+1)) is not negative; it is then the next remainder.
        root: Bits = C(1, 1)
        for place, digit in enumerate(digits, start=1):
            doubled = cat(C(0, 1), remainder)
            trial = cat(C(0, places - place), C(1, 2), root)
            difference = wire(m, doubled - trial, f"difference_{digit}")
            negative = difference[-1]
            cycles = self.cycles(digit)
            root = register(m, cat(~negative, root), f"root_{digit}", cycles)
            remainder = Mux(negative, doubled, difference)[: places + 3]
            remainder = register(m, remainder, f"remainder_{digit}", cycles)

        word = wire(m, Mux(side.nonzero, cat(remainder.any(), root), 0), "word")
        return round_and_pack(
            m,
            fmt,
            sign=side.sign,
            nan=side.nan,
            special=side.special,
            exponent=side.exponent[: fmt.exponent_bits],
            significand=word[-bits:],
            tail=word[:-bits],
            cycles=0,
        )


def _digits(format: FloatFormat) -> int:
    # The leading bit of the root is known to be 1; then come the fraction and the round bit.
    return format.fraction_bits + 1
