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

        # Order by magnitude, so that the difference of significands is never negative. Both
        # distances of the exponents are there when the comparison is.
        a, b = Unpacked(m, fmt, self.i_a, "a"), Unpacked(m, fmt, self.i_b, "b")
        swap = wire(m, a.magnitude < b.magnitude, "swap")
        subtract = wire(m, a.sign ^ b.sign, "subtract")
        cancels = subtract & (a.magnitude == b.magnitude)
        # Beyond the guard bits only whether something is there matters, hence saturation.
        distance_bits = bits_for(bits + 2)
        a_exponent = wire(m, a.exponent, "a_exponent")
        b_exponent = wire(m, b.exponent, "b_exponent")
        a_b = wire(m, (a_exponent - b_exponent)[: fmt.exponent_bits], "a_b")
        b_a = wire(m, (b_exponent - a_exponent)[: fmt.exponent_bits], "b_a")
        distance = Mux(swap, saturate(b_a, distance_bits), saturate(a_b, distance_bits))
        large_1 = register(m, Mux(swap, b.significand, a.significand), "large_1")
        small_1 = register(m, Mux(swap, a.significand, b.significand), "small_1")
        distance_1 = register(m, distance, "distance_1")
        subtract_1 = register(m, subtract, "subtract_1")
        side_1 = carry(
            m,
            1,
            "side_1",
            exponent=Mux(swap, b_exponent, a_exponent),
            sign=Mux(swap, b.sign, a.sign) & ~cancels,
            nan=a.nan | b.nan | (a.special & b.special & subtract),
            special=a.special | b.special,
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
        limit = C(1 << (bits + 3), bits + 4) >> side_1.exponent
        limit_2 = register(m, limit | 1, "limit_2")
        side_2 = carry(m, 1, "side_2", **vars(side_1))
        zeros = LeadingZeros(m, sum_2 | limit_2, "zeros")
        sum_3 = register(m, sum_2, "sum_3")
        side_3 = carry(m, 1, "side_3", **vars(side_2))

        shift = wire(m, zeros.count, "shift")
        sum_4 = register(m, (sum_3 << shift)[: bits + 4], "sum_4")
        # The top bit of the sum counts one more than that of the larger operand.
        exponent = (side_3.exponent + 1 - shift)[: fmt.exponent_bits]
        side_4 = carry(m, 1, "side_4", **{**vars(side_3), "exponent": exponent})

        return round_and_pack(m, fmt, significand=sum_4[-bits:], tail=sum_4[:-bits], **vars(side_4))
