"""Floating-point addition."""

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

__all__ = ["FloatAdd"]


class FloatAdd(FloatOperator):
    """``a + b``, three to nine cycles.

    An exact zero sum of operands of different sign is +0; infinities of different sign give NaN.
    A subtraction is an addition with the sign bit of the second operand inverted.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> half, three = 0x3F00_0000, 0x4040_0000
    >>> adder = FloatAdd(stages=4)
    >>> hex(outputs(adder, 4, i_valid=1, i_a=half, i_b=three)["o_y"])  # 3.5
    '0x40600000'
    >>> adder.module_name
    'fp32_add_4_stages'
    """

    operation = "add"

    cuts: ClassVar = {
        3: ("order", "sum"),
        4: ("order", "sum", "shift"),
        5: ("order", "sum", "coarse", "shift"),
        6: ("order", "align", "sum", "coarse", "shift"),
        7: ("compare", "order", "align", "sum", "coarse", "shift"),
        8: ("compare", "order", "align", "sum", "count", "coarse", "shift"),
        9: ("compare", "order", "align", "sum", "count", "coarse", "shift", "round"),
    }
    usual_depth = 6

    def datapath(self, m: Module) -> Bits:
        fmt = self.format
        bits = fmt.significand_bits

        # Order by magnitude, so that the difference of significands is never negative. Both
        # exponent differences are ready as early as the comparison.
        a, b = Unpacked(m, fmt, self.i_a, "a"), Unpacked(m, fmt, self.i_b, "b")
        subtract = wire(m, a.sign ^ b.sign, "subtract")
        equal = a.magnitude == b.magnitude
        if not fmt.subnormals:
            equal |= a.zero & b.zero
        a_exponent = wire(m, a.exponent, "a_exponent")
        b_exponent = wire(m, b.exponent, "b_exponent")
        compared = carry(
            m,
            self.cycles("compare"),
            "compared",
            swap=a.magnitude < b.magnitude,
            a=a.cleared,
            b=b.cleared,
            a_exponent=a_exponent,
            b_exponent=b_exponent,
            a_sign=a.sign,
            b_sign=b.sign,
            a_b=(a_exponent - b_exponent)[: fmt.exponent_bits],
            b_a=(b_exponent - a_exponent)[: fmt.exponent_bits],
            subtract=subtract,
            cancels=subtract & equal,
            nan=a.nan | b.nan | (a.special & b.special & subtract),
            special=a.special | b.special,
        )
        # Below the guard bits it only matters if anything is lost, so the distance saturates.
        distance_bits = bits_for(bits + 2)
        swap = compared.swap
        distance = Mux(
            swap, saturate(compared.b_a, distance_bits), saturate(compared.a_b, distance_bits)
        )
        cycles = self.cycles("order")
        large = register(m, Mux(swap, compared.b, compared.a), "large", cycles)
        small = register(m, Mux(swap, compared.a, compared.b), "small", cycles)
        distance = register(m, distance, "distance", cycles)
        subtract = register(m, compared.subtract, "ordered_subtract", cycles)
        side = carry(
            m,
            cycles,
            "ordered",
            exponent=Mux(swap, compared.b_exponent, compared.a_exponent),
            sign=Mux(swap, compared.b_sign, compared.a_sign) & ~compared.cancels,
            nan=compared.nan,
            special=compared.special,
        )

        # Align to the larger operand with three bits below it (guard, round, sticky) and add.
        extended = cat(C(0, 3), small)
        lost = (extended & mask_below(distance, bits + 3)).any()
        cycles = self.cycles("align")
        aligned = register(m, (extended >> distance) | lost, "aligned", cycles)
        large = register(m, large, "aligned_large", cycles)
        subtract = register(m, subtract, "aligned_subtract", cycles)
        side = carry(m, cycles, "aligned_side", **vars(side))
        # One adder: an extra bit below adds the one that the two's complement needs.
        width = bits + 4
        augend = cat(C(1, 1), C(0, 3), large)
        addend = cat(C(1, 1), aligned, C(0, 1)) ^ cat(~subtract, subtract.replicate(width))
        cycles = self.cycles("sum")
        total = register(m, (augend + addend)[1 : width + 1], "sum", cycles)

        # Normalise, but shift by no more than the exponent: a number left unnormalised is then
        # subnormal. A one at the place of that shift limits the count. A one in the last place
        # limits the count of a zero sum, so that the exponent stays positive. Without subnormals a
        # number with a lower exponent or without a leading one is tiny.
        limit = C(0)
        if fmt.subnormals:
            limit = C(1 << (width - 1), width) >> side.exponent
            limit = register(m, limit | 1, "limit", cycles)
        side = carry(m, cycles, "summed", **vars(side))
        # Count zeros in fours first, shift, then count the rest one by one.
        padded = cat(C(0, -width % 4), wire(m, total | limit, "limited"))
        fours = cat(*(padded[place : place + 4].any() for place in range(0, len(padded), 4)))
        cycles = self.cycles("count")
        coarse = register(m, leading_zeros(m, fours, "zero_fours"), "coarse", cycles)
        padded = register(m, padded, "counted", cycles)
        total = register(m, total, "counted_sum", cycles)
        side = carry(m, cycles, "counted_side", **vars(side))
        cycles = self.cycles("coarse")
        places = cat(C(0, 2), coarse)
        top = register(m, (padded << places)[len(padded) - 4 : len(padded)], "top", cycles)
        total = register(m, (total << places)[:width], "shifted", cycles)
        side = carry(m, cycles, "shifted_side", coarse=coarse, **vars(side))
        upper = wire(m, ~top[2:4].any(), "upper")
        fine = wire(m, cat(~Mux(upper, top[1], top[3]), upper), "fine")
        cycles = self.cycles("shift")
        total = register(m, (total << fine)[:width], "normalised", cycles)
        # The top bit of the sum has twice the weight of the larger operand's top bit.
        exponent_bits = fmt.exponent_bits + (not fmt.subnormals)
        exponent = (side.exponent + 1 - cat(fine, side.coarse))[:exponent_bits]
        side = carry(
            m,
            cycles,
            "normalised_side",
            exponent=exponent,
            sign=side.sign,
            nan=side.nan,
            special=side.special,
        )
        if not fmt.subnormals:
            signed = wire(m, side.exponent.as_signed(), "signed_exponent")
            side.exponent = side.exponent[: fmt.exponent_bits]
            side.tiny = ~total[-1] | (signed < 1)
        return round_and_pack(
            m,
            fmt,
            significand=total[-bits:],
            tail=total[:-bits],
            cycles=self.cycles("round"),
            **vars(side),
        )
