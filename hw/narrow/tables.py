"""Tables of the numbers that codes of eight bits stand for."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise

__all__ = ["TABLES", "thresholds"]


def _linear(least: int, most: int) -> Iterable[Fraction]:
    # The number of codes is even, so one is left over beside the zero: it repeats the largest.
    return (Fraction(min(code, most), most) for code in range(least, least + 256))


def _dynamic(signed: bool) -> Iterable[Fraction]:
    """Yield the numbers of the dynamic tree of Dettmers et al.

    The source is *8-bit Optimizers via Block-wise Quantization*. There are zero, one, and seven
    decades below 1, each with twice as many means as the decade before it.
    """
    yield from (Fraction(0), Fraction(1))
    for decade in range(7):
        cells = (1 if signed else 2) << decade
        for cell in range(cells):
            mean = Fraction(1, 10) + Fraction(9, 10) * Fraction(2 * cell + 1, 2 * cells)
            value = mean / 10 ** (6 - decade)
            yield value
            if signed:
                yield -value


def _fp32(value: Fraction) -> int:
    """Return the FP32 bits of ``value``, a zero or a normal number, rounded to nearest even."""
    if not value:
        return 0
    exponent = 0
    while abs(value) >= 2:
        value, exponent = value / 2, exponent + 1
    while abs(value) < 1:
        value, exponent = value * 2, exponent - 1
    # Python rounds fractions half to even; a carry runs into the exponent.
    magnitude = (exponent + 126 << 23) + round(abs(value) * (1 << 23))
    return (value < 0) << 31 | magnitude


def _value(bits: int) -> Fraction:
    exponent, fraction = divmod(bits & 0x7FFFFFFF, 1 << 23)
    magnitude = Fraction((1 << 23) + fraction) * Fraction(2) ** (exponent - 150) if bits else 0
    return Fraction(-magnitude if bits >> 31 else magnitude)


TABLES: dict[str, tuple[int, ...]] = {
    name: tuple(map(_fp32, sorted(values)))
    for name, values in (
        ("linear_signed", _linear(-127, 127)),
        ("linear_unsigned", _linear(0, 255)),
        ("dynamic_signed", _dynamic(True)),
        ("dynamic_unsigned", _dynamic(False)),
    )
}
"""Tables by name: the FP32 number of each of the 256 codes, before scaling."""


def thresholds(table: str) -> tuple[int, ...]:
    """Return the FP32 numbers halfway between those of neighbouring codes of ``table``."""
    values = [_value(bits) for bits in TABLES[table]]
    return tuple(_fp32((one + other) / 2) for one, other in pairwise(values))
