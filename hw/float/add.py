"""Floating-point addition."""

from __future__ import annotations

from amaranth.hdl import C, Module, Mux
from amaranth.utils import bits_for

from hw.float.operator import FloatOperator
from hw.float.parts import (
    Bits,
    LeadingZeros,
    Unpacked,
    carry,
    cat,
    mask_below,
    register,
    round_and_pack,
    saturate,
    wire,
)

__all__ = ["FloatAdd"]


class FloatAdd(FloatOperator):
    """``a + b``, five cycles.

    An exact zero sum of operands of different sign is +0; infinities of different sign give NaN.
    A subtraction is an addition with the sign bit of the second operand inverted.
    """

    operation = "add"

    @property
    def latency(self) -> int:
        return 5

    def datapath(self, m: Module) -> Bits:
        fmt = self.format
        bits = fmt.significand_bits

        # Order by magnitude, so that the difference of significands is never negative and the
        # larger one is a NaN if any is.
        a, b = self.i_a, self.i_b
        swap = wire(m, a[:-1] < b[:-1], "swap")
        large = Unpacked(m, fmt, wire(m, Mux(swap, b, a), "large"), "large")
        small = Unpacked(m, fmt, wire(m, Mux(swap, a, b), "small"), "small")
        subtract = wire(m, a[-1] ^ b[-1], "subtract")
        cancels = subtract & (a[:-1] == b[:-1])
        distance = wire(m, (large.exponent - small.exponent)[: fmt.exponent_bits], "distance")
        large_1 = register(m, large.significand, "large_1")
        small_1 = register(m, small.significand, "small_1")
        # Beyond the guard bits only whether something is there matters, hence saturation.
        distance_1 = register(m, saturate(distance, bits_for(bits + 2)), "distance_1")
        subtract_1 = register(m, subtract, "subtract_1")
        side_2 = carry(
            m,
            2,
            "side_2",
            exponent=large.exponent,
            sign=large.sign & ~cancels,
            nan=large.nan | (small.special & subtract),
            special=large.special,
        )

        # Align to the larger operand with three bits below it (guard, round, sticky) and add.
        extended = cat(C(0, 3), small_1)
        lost = (extended & mask_below(distance_1, bits + 3)).any()
        aligned = wire(m, (extended >> distance_1) | lost, "aligned")
        augend = cat(C(0, 3), large_1)
        addend = cat(aligned, C(0, 1)) ^ subtract_1.replicate(bits + 4)
        sum_2 = register(m, (augend + addend + subtract_1)[: bits + 4], "sum_2")

        # Normalise, but shift by no more than the exponent: what is then left unnormalised is
        # subnormal. A one at the place of that shift limits the count; one in the last place
        # limits that of a zero sum, so that the exponent stays positive.
        limit = C(1 << (bits + 3), bits + 4) >> side_2.exponent
        zeros = LeadingZeros(m, sum_2 | limit | 1, "zeros")
        sum_3 = register(m, sum_2, "sum_3")
        side_3 = carry(m, 1, "side_3", **vars(side_2))

        shift = wire(m, zeros.count, "shift")
        sum_4 = register(m, (sum_3 << shift)[: bits + 4], "sum_4")
        # The top bit of the sum counts one more than that of the larger operand.
        exponent = (side_3.exponent + 1 - shift)[: fmt.exponent_bits]
        side_4 = carry(m, 1, "side_4", **{**vars(side_3), "exponent": exponent})

        return round_and_pack(m, fmt, significand=sum_4[-bits:], tail=sum_4[:-bits], **vars(side_4))
