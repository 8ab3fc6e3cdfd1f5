"""Floating-point division and square root in one small circuit, one operation at a time."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import C, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.float.format import FP32, FloatFormat
from hw.float.parts import Bits, Unpacked, cat, hold, round_and_pack, wire

__all__ = ["FloatDivSqrt"]


class FloatDivSqrt(wiring.Component):
    """``a / b`` or the square root of ``a``, a bit a cycle, with one subtractor.

    Results are those of :class:`~hw.float.div.FloatDiv` and :class:`~hw.float.sqrt.FloatSqrt`. For
    FP32 they take 29 or 30 cycles, or 2 if an operand is a zero, an infinity or a NaN. Each place
    that a subnormal number is shifted takes one more.

    Parameters
    ----------
    format
        Format of operands and result; with subnormals.

    Members
    -------
    i_valid, i_root, i_a, i_b : In(1), In(1), In(format.width), In(format.width)
        Operands; with ``i_root`` a square root is taken. None may come before the last result.
    o_valid, o_y : Out(1), Out(format.width)
        Result; ``o_y`` is meaningful only with ``o_valid``, which lasts one cycle.

    Examples
    --------
    >>> from hw.float.div import FloatDiv
    >>> from hw.verilog.writer import to_verilog
    >>> shared, pipelined = (len(to_verilog(unit, "u")) for unit in (FloatDivSqrt(), FloatDiv()))
    >>> shared < pipelined / 2
    True
    """

    def __init__(self, *, format: FloatFormat = FP32) -> None:
        if not format.subnormals:
            raise ValueError(f"format is {format.name}, expected one with subnormals")
        self.format = format
        """Format of operands and result."""
        width = format.width
        operands = {"i_valid": In(1), "i_root": In(1), "i_a": In(width), "i_b": In(width)}
        super().__init__({**operands, "o_valid": Out(1), "o_y": Out(width)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        fmt = self.format
        bits = fmt.significand_bits

        def bank(width: Any, name: str) -> Bits:
            return Signal(width, name=name, reset_less=True)

        a, b = Unpacked(m, fmt, self.i_a, "a"), Unpacked(m, fmt, self.i_b, "b")
        divides = ~self.i_root
        invalid = Mux(divides, (a.special & b.special) | (a.zero & b.zero), a.sign & ~a.zero)
        nan = wire(m, a.nan | (divides & b.nan) | invalid, "invalid")
        special = wire(m, nan | a.special | (divides & b.zero), "special")
        side = hold(
            m,
            self.i_valid,
            "side",
            root=self.i_root,
            sign=a.sign ^ (divides & b.sign),
            nan=nan,
            special=special,
        )

        exponent = bank(signed(fmt.exponent_bits + 2), "exponent")
        dividend = bank(bits + 1, "dividend")
        divisor = bank(bits, "divisor")
        remainder = bank(bits + 2, "remainder")
        # Digits of the result: the leading one, two more than the significand has, and a sticky
        # digit for everything below.
        word = bank(bits + 3, "word")
        step = bank(range(bits + 2), "step")

        # Root: compare the next two bits of the radicand with four times the root so far plus one.
        minuend = wire(m, Mux(side.root, cat(dividend[-2:], remainder), remainder), "minuend")
        subtrahend = Mux(side.root, cat(C(1, 2), word[: bits + 1]), divisor)
        difference = wire(m, minuend - subtrahend, "difference")
        negative = difference[-1]
        left = Mux(negative, minuend, difference)[: bits + 2]
        digits = cat(~negative, word[: bits + 1])

        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    dividend.eq(a.significand),
                    divisor.eq(Mux(divides, b.significand, 1 << (bits - 1))),
                    exponent.eq(a.exponent + fmt.bias - Mux(divides, b.exponent, 0)),
                    word.eq(0),
                ]
                with m.If(self.i_valid):
                    m.next = "NORMALISE"
                    with m.If(special | a.zero | (divides & b.special)):
                        m.d.sync += exponent.eq(1)
                        m.next = "FINISH"
            with m.State("NORMALISE"):
                a_short, b_short = ~dividend[bits - 1], ~divisor[-1]
                m.d.sync += step.eq(bits + 1)
                with m.If(a_short | b_short):
                    m.d.sync += [
                        dividend.eq(dividend << a_short),
                        divisor.eq(divisor << b_short),
                        exponent.eq(exponent - a_short + b_short),
                    ]
                with m.Else():
                    # An even exponent leaves a radicand in [1, 4); its root is in [1, 2).
                    m.d.sync += remainder.eq(Mux(side.root, 0, dividend))
                    with m.If(side.root):
                        m.d.sync += dividend.eq(dividend << exponent[0])
                        m.d.sync += exponent.eq(exponent >> 1)
                    m.next = "DIGITS"
            with m.State("DIGITS"):
                m.d.sync += [
                    dividend.eq(dividend << 2),
                    remainder.eq(Mux(side.root, left, left << 1)),
                    step.eq(step - 1),
                    word.eq(digits),
                ]
                with m.If(step == 0):
                    m.d.sync += word.eq(cat(left.any(), digits))
                    m.next = "FINISH"
            with m.State("FINISH"):
                # Shift a quotient below 1 up by one place, and a subnormal result back down.
                with m.If(~word[-1] & (exponent > 1)):
                    m.d.sync += [word.eq(word << 1), exponent.eq(exponent - 1)]
                with m.Elif(exponent < 1):
                    m.d.sync += [word.eq(cat(word[:2].any(), word[2:])), exponent.eq(exponent + 1)]
                with m.Else():
                    m.d.comb += self.o_valid.eq(1)
                    m.next = "IDLE"

        m.d.comb += self.o_y.eq(
            round_and_pack(
                m,
                fmt,
                sign=side.sign,
                nan=side.nan,
                special=side.special,
                exponent=exponent[: fmt.exponent_bits + 1],
                significand=word[-bits:],
                tail=word[:-bits],
                cycles=0,
            )
        )
        return m
