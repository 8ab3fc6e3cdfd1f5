"""Floating-point multiplication."""

from __future__ import annotations

from typing import Any, ClassVar

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


_NARROW_BITS = 17
"""Bits of the narrower unsigned operand of an AMD DSP48 multiplier."""


class FloatMul(FloatOperator):
    """``a * b``, three to eight cycles; infinity times zero gives NaN.

    The product of significands is the sum of two partial products, each for a DSP48E2 in single
    precision. From five cycles on, the pipeline has the registers of these blocks: before the
    products, after them and after the sum.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> half, three = 0x3F00_0000, 0x4040_0000
    >>> hex(outputs(FloatMul(stages=5), 5, i_valid=1, i_a=half, i_b=three)["o_y"])  # 1.5
    '0x3fc00000'
    """

    operation = "mul"

    cuts: ClassVar = {
        3: ("product", "sticky"),
        4: ("operands", "product", "sticky"),
        5: ("operands", "product", "sum", "sticky"),
        6: ("operands", "product", "sum", "shift", "short"),
        7: ("operands", "product", "sum", "shift", "sticky", "short"),
        8: ("operands", "product", "sum", "shift", "sticky", "short", "round"),
    }
    usual_depth = 6

    def datapath(self, m: Module) -> Bits:
        fmt = self.format
        bits = fmt.significand_bits
        shift_width = bits_for(bits + 2)

        cycles = self.cycles("operands")
        a, b = Unpacked(m, fmt, self.i_a, "a"), Unpacked(m, fmt, self.i_b, "b")
        a_1 = register(m, a.significand, "a_1", cycles)
        b_1 = register(m, b.significand, "b_1", cycles)
        exponent = register(m, a.field + b.field, "exponent", cycles)
        special = wire(m, a.special | b.special, "special")
        side = carry(
            m,
            self.cycles("operands", "product"),
            "side",
            sign=a.sign ^ b.sign,
            nan=a.nan | b.nan | a.zero | b.zero,
            special=special,
        )

        cycles = self.cycles("product")
        narrow = min(_NARROW_BITS, bits)
        low = register(m, a_1 * b_1[:narrow], "low", cycles)
        high = register(m, a_1 * b_1[narrow:], "high", cycles)
        if not fmt.subnormals:
            return self._flushed(m, low, high, register(m, exponent, "field_sum", cycles), side)
        # At most one subnormal operand matters: the product of two rounds to zero.
        smaller = wire(m, Mux(a_1[-1], b_1, a_1), "smaller")
        zeros = register(m, leading_zeros(m, smaller, "leading"), "zeros", cycles)
        exponent = register(m, exponent + ~smaller[-1], "product_exponent", cycles)

        # The top bit of the product has the exponent `exponent - bias + 1`. Shift leading zeros out
        # to the left while the exponent stays at least 1, or shift right if it is less than 1.
        cycles = self.cycles("sum")
        product = register(m, (cat(C(0, narrow), high) + low)[: 2 * bits], "product", cycles)
        one = C(1, fmt.exponent_bits + 1)
        normalised = exponent - zeros - (fmt.bias - 1)
        to_one = wire(m, fmt.bias - exponent, "to_one")
        most = (1 << shift_width) - 1
        aim = Mux(
            exponent >= zeros + fmt.bias,
            cat(C(0, 1), fit(zeros, shift_width), normalised[: len(one)]),
            Mux(
                exponent < fmt.bias,
                cat(C(1, 1), Mux(to_one > most, C(most), to_one[:shift_width]), one),
                cat(C(0, 1), (exponent - fmt.bias)[:shift_width], one),
            ),
        )
        aim = wire(m, aim, "aim")
        side = carry(
            m,
            cycles,
            "aimed",
            right=aim[0],
            shift=aim[1 : 1 + shift_width],
            exponent=aim[1 + shift_width :],
            **vars(side),
        )

        # Keep two bits below the significand, the lower one sticky, and one more for a leading
        # place that may be missing.
        low_bits = bits - 2
        left_shifted = (product << side.shift)[: 2 * bits]
        right_shifted = product >> side.shift
        cycles = self.cycles("shift")
        lost = side.right & (product & mask_below(side.shift, bits + 2)).any()
        lost = register(m, lost, "lost", cycles)
        shifted = Mux(side.right, right_shifted, left_shifted)
        shifted = register(m, shifted, "shifted", cycles)
        side = carry(
            m,
            cycles,
            "shifted_side",
            exponent=side.exponent,
            sign=side.sign,
            nan=side.nan,
            special=side.special,
        )
        cycles = self.cycles("sticky")
        word = cat(shifted[:low_bits].any() | lost, shifted[low_bits:])
        word = register(m, word, "sticky", cycles)
        side = carry(m, cycles, "sticky_side", **vars(side))

        # The product of numbers in [1, 2) is in [1, 4): shift it by one place if it is below 2.
        cycles = self.cycles("short")
        short = wire(m, ~word[-1] & (side.exponent != 1), "short")
        word = Mux(short, cat(word[0], word)[:-1], word)
        word = register(m, word, "word", cycles)
        exponent = (side.exponent - short)[: fmt.exponent_bits + 1]
        side = carry(m, cycles, "word_side", **{**vars(side), "exponent": exponent})
        return round_and_pack(
            m,
            fmt,
            significand=word[-bits:],
            tail=word[:-bits],
            cycles=self.cycles("round"),
            **vars(side),
        )

    def _flushed(self, m: Module, low: Bits, high: Bits, exponent: Bits, side: Any) -> Bits:
        """Build the rest of the datapath without subnormals.

        It only shifts the product by the one leading place that may be missing.
        """
        fmt = self.format
        bits = fmt.significand_bits
        narrow = min(_NARROW_BITS, bits)

        # The top bit of the product has the exponent `exponent - bias + 1`, maybe negative.
        cycles = self.cycles("sum")
        product = register(m, (cat(C(0, narrow), high) + low)[: 2 * bits], "product", cycles)
        exponent = (exponent - (fmt.bias - 1))[: fmt.exponent_bits + 2]
        side = carry(m, cycles, "summed", exponent=exponent, **vars(side))

        cycles = self.cycles("shift")
        word = cat(product[: bits - 2].any(), product[bits - 2 :])
        word = register(m, word, "shifted", cycles)
        side = carry(m, cycles, "shifted_side", **vars(side))
        cycles = self.cycles("sticky")
        word = register(m, word, "sticky", cycles)
        side = carry(m, cycles, "sticky_side", **vars(side))

        cycles = self.cycles("short")
        short = wire(m, ~word[-1], "short")
        word = register(m, Mux(short, cat(word[0], word)[:-1], word), "word", cycles)
        exponent = (side.exponent - short)[: fmt.exponent_bits + 2]
        side = carry(m, cycles, "word_side", **{**vars(side), "exponent": exponent})
        signed = wire(m, side.exponent.as_signed(), "signed_exponent")
        side.exponent = side.exponent[: fmt.exponent_bits + 1]
        return round_and_pack(
            m,
            fmt,
            significand=word[-bits:],
            tail=word[:-bits],
            cycles=self.cycles("round"),
            # If the result is not special, `nan` is set only if an operand is a zero.
            tiny=side.nan | (signed < 1),
            **vars(side),
        )
