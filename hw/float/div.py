"""Floating-point division."""

from __future__ import annotations

from amaranth.hdl import C, Module, Mux
from amaranth.utils import bits_for

from hw.float.format import FloatFormat
from hw.float.operator import FloatOperator
from hw.float.parts import (
    Bits,
    Unpacked,
    carry,
    cat,
    digit_depths,
    leading_zeros,
    mask_below,
    register,
    round_and_pack,
    saturate,
    wire,
)

__all__ = ["FloatDiv"]


_FIXED = ("operands", "normalised", "first", "shifted")


class FloatDiv(FloatOperator):
    """``a / b`` by restoring division; 11 to 29 cycles for FP32.

    It finds up to four quotient bits a cycle. 0 / 0 and infinity / infinity give NaN; any other
    number divided by zero gives an infinity.
    """

    operation = "div"

    @classmethod
    def depths(cls, format: FloatFormat) -> dict[int, tuple[str, ...]]:
        return digit_depths(_digits(format), _FIXED)

    def datapath(self, m: Module) -> Bits:
        fmt = self.format
        bits = fmt.significand_bits
        digits = [f"digit_{place}" for place in range(_digits(fmt))]

        a, b = Unpacked(m, fmt, self.i_a, "a"), Unpacked(m, fmt, self.i_b, "b")
        a_1 = register(m, a.significand, "a_1")
        b_1 = register(m, b.significand, "b_1")
        a_zeros_1 = b_zeros_1 = C(0)
        if fmt.subnormals:
            a_zeros_1 = register(m, leading_zeros(m, a.significand, "a_zeros"), "a_zeros_1")
            b_zeros_1 = register(m, leading_zeros(m, b.significand, "b_zeros"), "b_zeros_1")
        exponent_1 = register(m, a.exponent - b.exponent + fmt.bias, "exponent_1")
        side_3 = carry(
            m,
            3,
            "side_3",
            sign=a.sign ^ b.sign,
            nan=a.nan | b.nan | (a.special & b.special) | (a.zero & b.zero),
            special=a.special | b.nan | b.zero,
            zero=a.zero | b.special,
        )

        a_2 = register(m, (a_1 << a_zeros_1)[:bits], "a_2")
        b_2 = register(m, (b_1 << b_zeros_1)[:bits], "b_2")
        exponent_2 = register(m, exponent_1 - a_zeros_1 + b_zeros_1, "exponent_2")

        # Double the dividend if the quotient would be below 1; the quotient is then in [1, 2).
        difference = wire(m, a_2 - b_2, "difference")
        below = difference[-1]
        remainder = register(
            m, Mux(below, cat(C(0, 1), a_2) - b_2, difference)[:bits], "remainder_3"
        )
        divisor = register(m, b_2, "divisor_3")
        exponent_3 = register(m, exponent_2 - below, "exponent_3")

        subnormal = wire(m, exponent_3 < 1, "subnormal")
        if fmt.subnormals:
            # Shift subnormal results to the right; a shift past the last bit makes the zeros.
            missing = wire(m, (1 - exponent_3)[: len(exponent_3) - 1], "missing")
            shift = Mux(subnormal, saturate(missing, bits_for(bits + 2)), 0)
            exponent = Mux(subnormal, 1, exponent_3)
            vanishing = {"shift": shift | side_3.zero.replicate(len(shift))}
        else:
            exponent = exponent_3
            vanishing = {"tiny": side_3.zero | subnormal}
        side = carry(
            m,
            self.cycles(*digits),
            "side",
            exponent=exponent[: fmt.exponent_bits],
            sign=side_3.sign,
            nan=side_3.nan,
            special=side_3.special | (~side_3.zero & (exponent_3 >= fmt.max_exponent)),
            **vanishing,
        )

        quotient: Bits = C(1, 1)
        for digit in digits:
            doubled = cat(C(0, 1), remainder)
            difference = wire(m, doubled - divisor, f"difference_{digit}")
            negative = difference[-1]
            cycles = self.cycles(digit)
            quotient = register(m, cat(~negative, quotient), f"quotient_{digit}", cycles)
            remainder = Mux(negative, doubled, difference)[:bits]
            remainder = register(m, remainder, f"remainder_{digit}", cycles)
            divisor = register(m, divisor, f"divisor_{digit}", cycles)

        lost = remainder.any()
        if fmt.subnormals:
            lost |= (quotient & mask_below(side.shift, len(quotient))).any()
            quotient >>= side.shift
            del side.shift
        word = register(m, cat(lost, quotient), "word")
        last = carry(m, 1, "last", **vars(side))
        return round_and_pack(
            m, fmt, significand=word[-bits:], tail=word[:-bits], cycles=0, **vars(last)
        )


def _digits(format: FloatFormat) -> int:
    # The leading quotient bit is known to be 1; then come the fraction and the round bit.
    return format.fraction_bits + 1
