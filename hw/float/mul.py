"""Floating-point multiplication."""

from __future__ import annotations

from amaranth.hdl import C, Module, Mux
from amaranth.utils import bits_for

from hw.float.operator import FloatOperator
from hw.float.parts import (
    Bits,
    Unpacked,
    carry,
    cat,
    fit,
    leading_zeros,
    mask_below,
    register,
    round_and_pack,
    wire,
)

__all__ = ["FloatMul"]


class FloatMul(FloatOperator):
    """``a * b``, five cycles; infinity times zero gives NaN.

    The product of significands is one multiplication with a register stage before it and two
    after it, which are those inside a DSP48E2. In single precision it takes two of them.
    """

    operation = "mul"

    @property
    def latency(self) -> int:
        return 5

    def datapath(self, m: Module) -> Bits:
        fmt = self.format
        bits = fmt.significand_bits
        shift_width = bits_for(bits + 2)

        a, b = Unpacked(m, fmt, self.i_a, "a"), Unpacked(m, fmt, self.i_b, "b")
        a_1 = register(m, a.significand, "a_1")
        b_1 = register(m, b.significand, "b_1")
        exponent_1 = register(m, a.field + b.field, "exponent_1")
        special = wire(m, a.special | b.special, "special")
        side_2 = carry(
            m,
            2,
            "side_2",
            sign=a.sign ^ b.sign,
            nan=a.nan | b.nan | a.zero | b.zero,
            special=special,
        )

        product_2 = register(m, a_1 * b_1, "product_2")
        # At most one subnormal operand matters: the product of two rounds to zero anyway.
        smaller = wire(m, Mux(a_1[-1], b_1, a_1), "smaller")
        zeros_2 = register(m, leading_zeros(m, smaller, "zeros"), "zeros_2")
        exponent_2 = register(m, exponent_1 + ~smaller[-1], "exponent_2")

        # The top bit of the product counts with exponent_2 - bias + 1. Shift the zeros out to the
        # left, as far as the exponent stays 1 or more, or to the right if it is less than that.
        product_3 = register(m, product_2, "product_3")
        one = C(1, fmt.exponent_bits + 1)
        normalised = exponent_2 - zeros_2 - (fmt.bias - 1)
        to_one = wire(m, fmt.bias - exponent_2, "to_one")
        most = (1 << shift_width) - 1
        aim = Mux(
            exponent_2 >= zeros_2 + fmt.bias,
            cat(C(0, 1), fit(zeros_2, shift_width), normalised[: len(one)]),
            Mux(
                exponent_2 < fmt.bias,
                cat(C(1, 1), Mux(to_one > most, C(most), to_one[:shift_width]), one),
                cat(C(0, 1), (exponent_2 - fmt.bias)[:shift_width], one),
            ),
        )
        aim = wire(m, aim, "aim")
        aim_3 = carry(
            m,
            1,
            "aim_3",
            right=aim[0],
            shift=aim[1 : 1 + shift_width],
            exponent=aim[1 + shift_width :],
            **vars(side_2),
        )

        # Two bits more than the significand are kept, of which the lower is sticky, and one for
        # the place that may be missing at the top.
        low = bits - 2
        left_shifted = (product_3 << aim_3.shift)[: 2 * bits]
        right_shifted = product_3 >> aim_3.shift
        shifted = wire(m, Mux(aim_3.right, right_shifted, left_shifted), "shifted")
        lost = aim_3.right & (product_3 & mask_below(aim_3.shift, bits + 2)).any()
        product_4 = register(m, cat(shifted[:low].any() | lost, shifted[low:]), "product_4")
        side_4 = carry(
            m,
            1,
            "side_4",
            exponent=aim_3.exponent,
            sign=aim_3.sign,
            nan=aim_3.nan,
            special=aim_3.special,
        )

        # The product of numbers in [1, 2) is in [1, 4): one more place if it is below 2.
        short = wire(m, ~product_4[-1] & (side_4.exponent != 1), "short")
        word = wire(m, Mux(short, cat(product_4[0], product_4)[:-1], product_4), "word")
        return round_and_pack(
            m,
            fmt,
            significand=word[-bits:],
            tail=word[:-bits],
            **{**vars(side_4), "exponent": (side_4.exponent - short)[: fmt.exponent_bits + 1]},
        )
