"""Building blocks of the floating-point operators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeAlias

from amaranth.hdl import C, Cat, Module, Mux, Shape, Signal

from hw.float.format import FloatFormat
from hw.logic.delay import shared_delay

__all__ = [
    "Bits",
    "Unpacked",
    "carry",
    "cat",
    "delayed_pulse",
    "digit_depths",
    "fit",
    "hold",
    "leading_zeros",
    "mask_below",
    "register",
    "round_and_pack",
    "saturate",
    "wire",
]

Bits: TypeAlias = Any
"""Amaranth value. Amaranth types the results of slices and ``Cat`` too loosely for checks."""

_LONGEST_REGISTERS = 4


class Unpacked:
    """Fields and class of a number, combinational.

    ``exponent`` is the biased exponent that applies to ``significand`` (leading bit included). It
    is 1 for subnormal numbers and zero, which have a leading bit of 0; ``field`` is the stored
    exponent. ``special`` numbers are the infinities and NaNs.

    In a format without subnormals a number stored as one is a ``zero``, and ``exponent`` is
    ``field``. There only ``cleared`` is 0 for every zero; otherwise it equals ``significand``.
    """

    def __init__(self, m: Module, format: FloatFormat, bits: Bits, name: str) -> None:
        view: Bits = format.layout(bits)
        normal = wire(m, view.exponent.any(), f"{name}_normal")
        self.sign: Bits = view.sign
        self.magnitude: Bits = bits[:-1]
        self.field: Bits = view.exponent
        self.exponent: Bits = view.exponent | ~normal if format.subnormals else view.exponent
        self.significand: Bits = cat(view.fraction, normal)
        self.special: Bits = wire(m, view.exponent.all(), f"{name}_special")
        self.nan: Bits = self.special & view.fraction.any()
        zero = ~(normal | view.fraction.any()) if format.subnormals else ~normal
        self.zero: Bits = wire(m, zero, f"{name}_zero")
        self.cleared: Bits = self.significand
        if not format.subnormals:
            self.cleared = Mux(normal, self.significand, 0)


def wire(m: Module, value: Bits, name: str) -> Bits:
    """Return ``value`` as a named signal; an expression used twice would be emitted twice."""
    named = Signal(Shape.cast(value.shape()), name=name)
    m.d.comb += named.eq(value)
    return named


def cat(*parts: Bits) -> Bits:
    """Return ``parts`` side by side, the first in the least significant place."""
    return Cat(*parts)


def fit(value: Bits, width: int) -> Bits:
    """Return ``width`` bits of the unsigned ``value``, extended with zeros if it has fewer."""
    return cat(value, C(0, max(0, width - len(value))))[:width]


def register(m: Module, value: Bits, name: str, cycles: int = 1) -> Bits:
    """Return ``value`` one cycle later, without reset, or at once if ``cycles`` is 0."""
    if not cycles:
        return wire(m, value, name)
    stage = Signal(Shape.cast(value.shape()), name=name, reset_less=True)
    m.d.sync += stage.eq(value)
    return stage


def hold(m: Module, when: Bits, name: str, **values: Bits) -> Any:
    """Return the ``values`` of the last cycle with ``when``, as attributes, one cycle later.

    Each value has a register of its own, without reset. One wide register taken apart again costs
    several times as much to simulate.
    """
    registers = {
        key: Signal(Shape.cast(value.shape()), name=f"{name}_{key}", reset_less=True)
        for key, value in values.items()
    }
    with m.If(when):
        m.d.sync += [registers[key].eq(value) for key, value in values.items()]
    return SimpleNamespace(**registers)


def delayed_pulse(m: Module, pulse: Bits, cycles: int, name: str) -> Bits:
    """Return the bit ``pulse`` delayed by ``cycles``; a reset clears pulses in flight."""
    history = Signal(cycles, name=name)
    m.d.sync += history.eq(Cat(pulse, history))
    return history[-1]


def carry(m: Module, cycles: int, name: str, **values: Bits) -> Any:
    """Return the one-bit or unsigned ``values`` delayed by ``cycles``, as attributes.

    They travel in one word, which means fewer registers to simulate, or a memory if it is long.
    """
    word = cat(*values.values())
    if not cycles:
        word = wire(m, word, name)
    elif cycles <= _LONGEST_REGISTERS:
        for cycle in range(cycles):
            word = register(m, word, f"{name}_{cycle}")
    else:
        m.submodules[name] = delay = shared_delay(width=len(word), cycles=cycles)
        m.d.comb += delay.i.eq(word)
        word = delay.o
    later = SimpleNamespace()
    position = 0
    for key, value in values.items():
        setattr(later, key, word[position : position + len(value)])
        position += len(value)
    return later


def digit_depths(digits: int, fixed: tuple[str, ...]) -> dict[int, tuple[str, ...]]:
    """Return the depths, with their cuts, of an operator that finds ``digits`` one by one.

    Its cuts are ``fixed``, and ``digit_0``, ``digit_1``, ... after each digit. The last of these is
    always a register; the others are spread evenly, four, three, two digits or one apart.
    """
    return {
        len(fixed) + stages + 1: fixed
        + tuple(f"digit_{-(-digits * stage // stages) - 1}" for stage in range(1, stages + 1))
        for stages in sorted({-(-digits // apart) for apart in (4, 3, 2, 1)})
    }


def leading_zeros(m: Module, significand: Bits, name: str) -> Bits:
    """Return the number of zeros above the first one of ``significand``; arbitrary if it is zero.

    It suits values that seldom have many: a simulator stops at the leading bit.
    """
    width = len(significand)
    count = Signal(range(width), name=name)
    with m.If(~significand[-1]), m.Switch(significand[:-1]):  # pyright: ignore
        for zeros in range(1, width):
            with m.Case("0" * (zeros - 1) + "1" + "-" * (width - 1 - zeros)):
                m.d.comb += count.eq(zeros)
    return count


def saturate(value: Bits, bits: int) -> Bits:
    """Return the unsigned ``value`` in ``bits`` bits, all ones if it does not fit."""
    if len(value) <= bits:
        return value
    return Mux(value[bits:].any(), C((1 << bits) - 1, bits), value[:bits])


def mask_below(amount: Bits, width: int) -> Bits:
    """Return ``width`` bits with ones in the lowest ``amount`` places."""
    return ~(C((1 << width) - 1, width) << amount)[:width]


def round_and_pack(
    m: Module,
    format: FloatFormat,
    *,
    sign: Bits,
    nan: Bits,
    special: Bits,
    exponent: Bits,
    significand: Bits,
    tail: Bits,
    cycles: int,
    tiny: Bits | None = None,
) -> Bits:
    """Return the bits of a result, rounded to nearest even, after a register if ``cycles`` is 1.

    ``exponent`` (at least 1) and ``significand`` are as in :class:`Unpacked`. ``tail`` holds two or
    more bits below the significand; the last also stands for everything below. The leading bit may
    be 0 only if ``exponent`` is 1, or if the number is zero and ``exponent`` is less than that of
    infinity. With ``special`` the number is NaN if ``nan``, else infinity.

    ``tiny`` is for formats without subnormals and replaces the leading bit: it marks a number that
    is not special and is a zero, or must be flushed to one.
    """
    significand = wire(m, significand, "significand")
    exponent = wire(m, exponent, "exponent")
    field = exponent[: format.exponent_bits]
    if tiny is None:
        field = Mux(significand[-1], field, 0)
    # The tail carries if it is above half a unit, or half with an odd significand. The carry may
    # run from the fraction into the exponent: the largest subnormal number then becomes the
    # smallest normal one, and the largest number infinity.
    half = 1 << (len(tail) - 1)
    rounded = cat(tail, significand[:-1], field) + significand[0] + (half - 1)
    last = carry(
        m,
        cycles,
        "rounded",
        magnitude=rounded[len(tail) :][: format.width - 1],
        sign=sign,
        nan=special & nan,
        infinite=special | (exponent >= format.max_exponent),
        **({} if tiny is None else {"tiny": tiny & ~special}),
    )
    infinity = cat(C(format.infinity, format.width - 1), last.sign)
    other = Mux(last.nan, format.canonical_nan, infinity)
    number = Mux(last.infinite, other, cat(last.magnitude, last.sign))
    if tiny is None:
        return number
    return Mux(last.tiny, cat(C(0, format.width - 1), last.sign), number)
