"""Pieces of which the floating-point operators are made."""

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
"""An Amaranth value. Amaranth types what slices and ``Cat`` return too loosely to be checked."""

_LONGEST_REGISTERS = 4


class Unpacked:
    """A number taken apart, combinationally.

    ``exponent`` is the biased exponent with which ``significand`` (leading bit included) counts,
    so 1 for subnormal numbers and zero, whose leading bit is 0; ``field`` is what is stored.
    ``special`` numbers are the infinities and NaNs.

    In a format without subnormals what would be one is a ``zero``, and ``exponent`` is ``field``.
    There only ``cleared``, the significand otherwise, is 0 for every zero.
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
    """``value`` under a name. An expression that is used twice would be emitted twice."""
    named = Signal(Shape.cast(value.shape()), name=name)
    m.d.comb += named.eq(value)
    return named


def cat(*parts: Bits) -> Bits:
    """``parts`` side by side, the first in the least significant place."""
    return Cat(*parts)


def fit(value: Bits, width: int) -> Bits:
    """``width`` bits of the unsigned ``value``, with zeros above it if it has fewer."""
    return cat(value, C(0, max(0, width - len(value))))[:width]


def register(m: Module, value: Bits, name: str, cycles: int = 1) -> Bits:
    """``value`` one cycle later, in a register without reset, or at once if ``cycles`` is 0."""
    if not cycles:
        return wire(m, value, name)
    stage = Signal(Shape.cast(value.shape()), name=name, reset_less=True)
    m.d.sync += stage.eq(value)
    return stage


def hold(m: Module, when: Bits, name: str, **values: Bits) -> Any:
    """The ``values`` of the last cycle with ``when``, from the next one on, as attributes.

    Each is in a register of its own, without reset: to simulate, one wide register that is taken
    apart again costs several times as much.
    """
    registers = {
        key: Signal(Shape.cast(value.shape()), name=f"{name}_{key}", reset_less=True)
        for key, value in values.items()
    }
    with m.If(when):
        m.d.sync += [registers[key].eq(value) for key, value in values.items()]
    return SimpleNamespace(**registers)


def delayed_pulse(m: Module, pulse: Bits, cycles: int, name: str) -> Bits:
    """The bit ``pulse`` later by ``cycles``; a reset clears what is on its way."""
    history = Signal(cycles, name=name)
    m.d.sync += history.eq(Cat(pulse, history))
    return history[-1]


def carry(m: Module, cycles: int, name: str, **values: Bits) -> Any:
    """The one-bit or unsigned ``values`` later by ``cycles``, as attributes of the result.

    They travel in one word: fewer registers to move in simulation, a memory when it is long.
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
    """The depths of an operator that finds ``digits`` of its result one after the other.

    Its cuts are ``fixed``, and ``digit_0``, ``digit_1``, ... after each digit, of which the last is
    always a register and the others are spread evenly: four, three, two digits apart or one.
    """
    return {
        len(fixed) + stages + 1: fixed
        + tuple(f"digit_{-(-digits * stage // stages) - 1}" for stage in range(1, stages + 1))
        for stages in sorted({-(-digits // apart) for apart in (4, 3, 2, 1)})
    }


def leading_zeros(m: Module, significand: Bits, name: str) -> Bits:
    """How many zeros ``significand`` has above its most significant one; arbitrary if it is zero.

    For what seldom has many: a simulator is done when it sees the leading bit.
    """
    width = len(significand)
    count = Signal(range(width), name=name)
    with m.If(~significand[-1]), m.Switch(significand[:-1]):  # pyright: ignore
        for zeros in range(1, width):
            with m.Case("0" * (zeros - 1) + "1" + "-" * (width - 1 - zeros)):
                m.d.comb += count.eq(zeros)
    return count


def saturate(value: Bits, bits: int) -> Bits:
    """The unsigned ``value`` in ``bits`` bits, all ones if it does not fit."""
    if len(value) <= bits:
        return value
    return Mux(value[bits:].any(), C((1 << bits) - 1, bits), value[:bits])


def mask_below(amount: Bits, width: int) -> Bits:
    """``width`` bits of which the lowest ``amount`` are ones."""
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
    """The bits of a result, rounded to nearest even, with a register within if ``cycles`` is 1.

    ``exponent`` (at least 1) and ``significand`` are as in :class:`Unpacked`; ``tail`` is the two
    or more bits below the significand, of which the last also stands for all that is below it.
    The leading bit may be 0 only if ``exponent`` is 1, or the number is zero and ``exponent`` less
    than that of infinity. With ``special`` the number is NaN if ``nan``, else infinity.

    With ``tiny``, for formats without subnormals, the leading bit is not looked at: it says that a
    number that is not special is a zero, or to be flushed to one.
    """
    significand = wire(m, significand, "significand")
    exponent = wire(m, exponent, "exponent")
    field = exponent[: format.exponent_bits]
    if tiny is None:
        field = Mux(significand[-1], field, 0)
    # A carry leaves the tail if it is above half a unit, or half and the significand is odd. It
    # may run from the fraction into the exponent: that makes the smallest normal number of the
    # largest subnormal, the next binade, and infinity of the largest number.
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
