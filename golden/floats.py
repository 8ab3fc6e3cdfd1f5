"""Exact model of IEEE 754 arithmetic in any binary format, on integers and fractions.

Written from IEEE 754-2019: clause 3.4 (encoding), 4.3.1 (round to nearest, ties to even), 5.8
(conversion to integers), 5.11 (comparison), 6.1 (infinities), 6.2 (NaN: here always the canonical
quiet one, sign 0, only the top fraction bit), 6.3 (signs of zeros) and 9.6 (maximum). It is slow
and plain. For formats of 8 bits every operand pair can be tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

__all__ = [
    "BinaryFormat",
    "add",
    "compare",
    "div",
    "from_integer",
    "maximum",
    "mul",
    "sign",
    "sqrt",
    "to_integer",
]


@dataclass(frozen=True, kw_only=True)
class BinaryFormat:
    """Binary interchange format with ``exponent_bits`` and ``fraction_bits``.

    The standard always has ``subnormals``. Without them operations take subnormal operands as
    zeros of the same sign. A result that is not zero, but less in magnitude than the smallest
    normal number, becomes a zero of its sign.

    Examples
    --------
    >>> fp16 = BinaryFormat(exponent_bits=5, fraction_bits=10)
    >>> fp16.value(0x3E00)
    Fraction(3, 2)
    >>> hex(add(fp16, 0x3E00, 0x4000)), hex(div(fp16, 0x3C00, 0x0000))
    ('0x4300', '0x7c00')
    """

    exponent_bits: int
    fraction_bits: int
    subnormals: bool = True

    @property
    def infinity(self) -> int:
        """Bits of plus infinity."""
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def nan(self) -> int:
        """Bits of the canonical NaN."""
        return self.infinity + (1 << (self.fraction_bits - 1))

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return 2 - (1 << (self.exponent_bits - 1))

    def split(self, bits: int) -> tuple[int, int]:
        """Return the sign of ``bits``, and the bits of the magnitude."""
        place = self.exponent_bits + self.fraction_bits
        return bits >> place, bits & ((1 << place) - 1)

    def join(self, sign: int, magnitude: int) -> int:
        """Return the bits with a sign and magnitude: the inverse of :meth:`split`."""
        return sign << (self.exponent_bits + self.fraction_bits) | magnitude

    def is_nan(self, bits: int) -> bool:
        """Return whether ``bits`` are a NaN."""
        return self.split(bits)[1] > self.infinity

    def is_infinite(self, bits: int) -> bool:
        """Return whether ``bits`` are an infinity."""
        return self.split(bits)[1] == self.infinity

    def is_zero(self, bits: int) -> bool:
        """Return whether ``bits`` are a zero."""
        return self.split(bits)[1] == 0

    def value(self, bits: int) -> Fraction:
        """Return the exact value of finite ``bits``."""
        sign, magnitude = self.split(bits)
        exponent, fraction = divmod(magnitude, 1 << self.fraction_bits)
        if exponent:
            fraction += 1 << self.fraction_bits
            exponent -= 1
        power = exponent + self.emin - self.fraction_bits
        return (-1) ** sign * fraction * Fraction(2) ** power

    def operand(self, bits: int) -> int:
        """Return ``bits`` as an operation takes them: a subnormal number may become a zero."""
        sign, magnitude = self.split(bits)
        if not self.subnormals and magnitude < 1 << self.fraction_bits:
            return self.join(sign, 0)
        return bits

    def round(self, sign: int, value: Fraction) -> int:
        """Return the bits of ``value`` (positive or zero) with ``sign``.

        They are rounded to nearest even, or flushed.
        """
        if not value or (not self.subnormals and value < Fraction(2) ** self.emin):
            return self.join(sign, 0)
        binade = value.numerator.bit_length() - value.denominator.bit_length()
        if Fraction(2) ** binade > value:
            binade -= 1
        binade = max(binade, self.emin)
        # Python rounds fractions half to even.
        steps = round(value / Fraction(2) ** (binade - self.fraction_bits))
        magnitude = ((binade - self.emin) << self.fraction_bits) + steps
        return self.join(sign, min(magnitude, self.infinity))


def add(form: BinaryFormat, a: int, b: int) -> int:
    """Return ``a + b``; operands and result are bits."""
    a, b = form.operand(a), form.operand(b)
    if form.is_nan(a) or form.is_nan(b):
        return form.nan
    if form.is_infinite(a) and form.is_infinite(b):
        return a if a == b else form.nan
    if form.is_infinite(a):
        return a
    if form.is_infinite(b):
        return b
    total = form.value(a) + form.value(b)
    if total == 0:
        # Only two negative zeros make a negative zero.
        return form.join(form.split(a)[0] & form.split(b)[0], 0)
    return form.round(int(total < 0), abs(total))


def mul(form: BinaryFormat, a: int, b: int) -> int:
    """Return ``a * b``; operands and result are bits."""
    a, b = form.operand(a), form.operand(b)
    sign = form.split(a)[0] ^ form.split(b)[0]
    if form.is_nan(a) or form.is_nan(b):
        return form.nan
    if form.is_infinite(a) or form.is_infinite(b):
        if form.is_zero(a) or form.is_zero(b):
            return form.nan
        return form.join(sign, form.infinity)
    return form.round(sign, abs(form.value(a) * form.value(b)))


def div(form: BinaryFormat, a: int, b: int) -> int:
    """Return ``a / b``; operands and result are bits."""
    a, b = form.operand(a), form.operand(b)
    sign = form.split(a)[0] ^ form.split(b)[0]
    if form.is_nan(a) or form.is_nan(b):
        return form.nan
    if form.is_infinite(a):
        return form.nan if form.is_infinite(b) else form.join(sign, form.infinity)
    if form.is_infinite(b):
        return form.join(sign, 0)
    if form.is_zero(b):
        return form.nan if form.is_zero(a) else form.join(sign, form.infinity)
    return form.round(sign, abs(form.value(a) / form.value(b)))


def sqrt(form: BinaryFormat, a: int) -> int:
    """Return the square root of ``a``; operand and result are bits."""
    a = form.operand(a)
    sign, _ = form.split(a)
    if form.is_nan(a):
        return form.nan
    if form.is_zero(a):
        return a
    if sign:
        return form.nan
    if form.is_infinite(a):
        return a
    value = form.value(a)
    # Take the root to more places than the format has. If it is inexact, add half a place: the sum
    # lies on the same side of every number and midpoint of the format as the root itself.
    places = 2 * (form.fraction_bits + 4) + abs(value.numerator.bit_length()
                                                - value.denominator.bit_length())  # fmt: skip
    scaled = value * 4**places
    whole = isqrt(scaled.numerator // scaled.denominator)
    root = Fraction(whole)
    if whole * whole != scaled:
        root += Fraction(1, 2)
    return form.round(0, root / 2**places)


def maximum(form: BinaryFormat, a: int, b: int) -> int:
    """Return the larger of ``a`` and ``b``, +0 of two zeros; operands and result are bits."""
    a, b = form.operand(a), form.operand(b)
    if form.is_nan(a) or form.is_nan(b):
        return form.nan
    if not form.split(a)[0] and not form.split(b)[0]:
        return max(a, b)
    # If a sign is set, the smaller bits are the larger number, and a clear sign wins.
    return min(a, b)


def sign(form: BinaryFormat, a: int) -> int:
    """Return 1 with the sign of ``a``, or a zero as it is; operand and result are bits."""
    a = form.operand(a)
    if form.is_nan(a):
        return form.nan
    if form.is_zero(a):
        return a
    return form.round(form.split(a)[0], Fraction(1))


def compare(form: BinaryFormat, a: int, b: int) -> int:
    """Return 1 if ``a < b``, 2 if ``a == b``, else 0; operands are bits."""
    a, b = form.operand(a), form.operand(b)
    if form.is_nan(a) or form.is_nan(b):
        return 0

    def place(bits: int) -> Fraction:
        # An infinity counts as the start of the next binade.
        if form.is_infinite(bits):
            return (-1) ** form.split(bits)[0] * Fraction(2) ** (2 - form.emin)
        return form.value(bits)

    return int(place(a) < place(b)) + 2 * int(place(a) == place(b))


def from_integer(form: BinaryFormat, a: int) -> int:
    """Return the bits of the integer with two's complement ``a``, as wide as the format."""
    sign, rest = form.split(a)
    value = rest - form.join(sign, 0)
    return form.round(sign, Fraction(abs(value)))


def to_integer(form: BinaryFormat, a: int, b: int) -> int:
    """Return ``a`` as an integer, to nearest even, or toward zero if ``b`` is odd.

    The result is a two's complement as wide as the format. Numbers that are too large give the
    nearest integer in range, and a NaN gives the largest.
    """
    a = form.operand(a)
    sign, _ = form.split(a)
    least = form.join(1, 0)
    if form.is_nan(a) or form.is_infinite(a):
        return least if sign and not form.is_nan(a) else least - 1
    value = form.value(a)
    # Python rounds fractions half to even.
    whole = int(value) if b & 1 else round(value)
    return min(max(whole, -least), least - 1) % (2 * least)
