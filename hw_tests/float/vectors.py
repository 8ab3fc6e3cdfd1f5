"""FP32 operands for the operators, half of them aimed at the edges of the arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["SPECIAL", "directed", "fp32_operands", "uniform_bits"]

Bits = NDArray[np.uint32]

SPECIAL = np.array(
    [
        0x00000000, 0x00000001, 0x00000002, 0x00000003, 0x003FFFFF, 0x00400000, 0x00400001,
        0x007FFFFE, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000, 0x0B800000,
        0x0C000000, 0x1F800000, 0x20000000, 0x33800000, 0x33800001, 0x34000000, 0x3EFFFFFF,
        0x3F000000, 0x3F000001, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FFFFFFF, 0x40000000,
        0x40000001, 0x4B000000, 0x4B7FFFFF, 0x4B800000, 0x5F000000, 0x5F7FFFFF, 0x7E800000,
        0x7EFFFFFF, 0x7F000000, 0x7F7FFFFE, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FBFFFFF,
        0x7FC00000, 0x7FC00001, 0x7FFFFFFF,
    ],
    dtype=np.uint32,
)  # fmt: skip
"""Zero, the ends of the subnormal and normal ranges, powers of two, infinity, NaNs (positive)."""

_SIGN = np.uint32(0x80000000)


def uniform_bits(rng: np.random.Generator, count: int) -> Bits:
    """Any bits: exponents uniform, so all kinds of numbers but few subnormals or NaNs."""
    return rng.integers(0, 1 << 32, count, dtype=np.uint32)


def _compose(rng: np.random.Generator, exponent: NDArray[np.int64], fraction: Bits) -> Bits:
    """Numbers of random sign; exponents are clipped to the finite range."""
    sign = rng.integers(0, 2, len(fraction), dtype=np.uint32) << np.uint32(31)
    field = np.clip(exponent, 0, 254).astype(np.uint32)
    return sign | field << np.uint32(23) | fraction


def _fractions(rng: np.random.Generator, count: int) -> Bits:
    """Random, short (few leading bits), long runs of ones or zeros, and single low bits."""
    random = rng.integers(0, 1 << 23, count, dtype=np.uint32)
    places = rng.integers(0, 24, count, dtype=np.uint32)
    low = (np.uint32(1) << places) - np.uint32(1)
    kinds = [
        random,
        random & ~low,
        random | low,
        ~low,
        low,
        (np.uint32(1) << places),
        ~(np.uint32(1) << places),
        random & rng.integers(0, 1 << 23, count, dtype=np.uint32) & ~low,
    ]
    which = rng.integers(0, len(kinds), count)
    return np.choose(which, kinds).astype(np.uint32) & np.uint32(0x7FFFFF)


def directed(rng: np.random.Generator, count: int, operation: str) -> tuple[Bits, Bits]:
    """Operand pairs at the edges of ``operation`` (``add``, ``mul``, ``div``, ``sqrt``)."""
    groups = []
    share = count // 6 + 1

    def exponents(low: int, high: int) -> NDArray[np.int64]:
        return rng.integers(low, high, share, dtype=np.int64)

    # Every special value against every other and against neighbours of special values.
    signed = np.concatenate([SPECIAL, SPECIAL | _SIGN])
    a, b = rng.choice(signed, share), rng.choice(signed, share)
    near = rng.integers(-3, 4, share, dtype=np.int64)
    b = np.where(rng.random(share) < 0.5, b, (b.astype(np.int64) + near).astype(np.uint32))
    groups.append((a, b))

    # A special value or a subnormal number against any number, either way round.
    any_number = _compose(rng, exponents(0, 255), _fractions(rng, share))
    subnormal = _compose(rng, exponents(0, 1), _fractions(rng, share))
    special = np.where(rng.random(share) < 0.3, rng.choice(signed, share), subnormal)
    swap = rng.random(share) < 0.5
    groups.append((np.where(swap, special, any_number), np.where(swap, any_number, special)))

    # Exponents at which the result is about to become subnormal, to vanish or to overflow.
    ea = exponents(0, 255)
    spread = exponents(-27, 4)
    if operation == "add":
        top = rng.random(share) < 0.5
        ea = np.where(top, 254 - exponents(0, 3), exponents(0, 28))
        eb = np.where(top, 254 - exponents(0, 27), exponents(0, 28))
    elif operation == "div":
        eb = np.where(rng.random(share) < 0.5, ea + 127 - 1 - spread, ea - 127 + exponents(-3, 4))
    else:
        eb = 127 + np.where(rng.random(share) < 0.5, 1 + spread, 254 - exponents(-2, 4)) - ea
    a, b = _compose(rng, ea, _fractions(rng, share)), _compose(rng, eb, _fractions(rng, share))
    swap = (rng.random(share) < 0.5) & (operation != "div")
    groups.append((np.where(swap, b, a), np.where(swap, a, b)))

    # Ties and near ties: the exact result ends in the bit below the last, or one unit off.
    groups.append(_ties(rng, share, operation))

    # Close operands: cancellation, equal magnitudes, quotients next to 1.
    a = _compose(rng, exponents(0, 255), _fractions(rng, share))
    offset = rng.integers(-64, 65, share, dtype=np.int64) << exponents(0, 20)
    b = (a.astype(np.int64) + np.where(rng.random(share) < 0.3, 0, offset)).astype(np.uint32)
    flip = rng.integers(0, 2, share, dtype=np.uint32) << np.uint32(31)
    groups.append((a, b ^ flip))

    # Exponents within the reach of alignment, structured fractions.
    ea = exponents(0, 255)
    groups.append(
        (
            _compose(rng, ea, _fractions(rng, share)),
            _compose(rng, ea + exponents(-27, 28), _fractions(rng, share)),
        )
    )
    order = rng.permutation(6 * share)[:count]
    first, second = (np.concatenate(column)[order] for column in zip(*groups, strict=True))
    return first, second


def _ties(rng: np.random.Generator, count: int, operation: str) -> tuple[Bits, Bits]:
    def finite(low: int, high: int) -> NDArray[np.int64]:
        return rng.integers(low, high, count, dtype=np.int64)

    if operation == "add":
        # b is half a unit of the last place of a, or next to it.
        ea = finite(26, 254)
        a = _compose(rng, ea, _fractions(rng, count))
        b = _compose(rng, ea - 24, np.zeros(count, dtype=np.uint32))
        return a, b + finite(-1, 2).astype(np.uint32)
    if operation == "mul":
        # Odd factors of 12 and 13 bits: 25 significant bits, of which the last is the tie; or
        # one factor is 1.5 * 2^k or a power of two that makes the result subnormal.
        x = finite(1 << 11, 1 << 12) | 1
        y = finite(1 << 12, 1 << 13) | 1
        a = _compose(rng, finite(1, 255), ((x << 12) & 0x7FFFFF).astype(np.uint32))
        b = _compose(rng, finite(1, 255), ((y << 11) & 0x7FFFFF).astype(np.uint32))
        half = rng.random(count) < 0.5
        c = _compose(rng, finite(1, 60), _fractions(rng, count))
        d = _compose(rng, 127 - finite(1, 60), np.zeros(count, dtype=np.uint32))
        return np.where(half, a, c), np.where(half, b, d)
    if operation == "div":
        # A quotient of normal numbers is never a tie; a subnormal quotient may be. Otherwise the
        # dividend is a multiple of the divisor, or the number next to one.
        half = rng.random(count) < 0.5
        a = _compose(rng, finite(1, 60), _fractions(rng, count))
        b = _compose(rng, 127 + finite(0, 60), np.zeros(count, dtype=np.uint32))
        divisor = _compose(rng, finite(64, 190), (finite(0, 1 << 11) << 12).astype(np.uint32))
        factor = _compose(rng, finite(64, 190), (finite(0, 1 << 12) << 11).astype(np.uint32))
        multiple = (divisor.view(np.float32) * factor.view(np.float32)).view(np.uint32)
        multiple = multiple + finite(-1, 2).astype(np.uint32)
        return np.where(half, a, multiple), np.where(half, b, divisor)
    # Squares of numbers of 12 bits and of 24 bits (rounded), and their neighbours.
    short = _compose(rng, finite(64, 190), (finite(0, 1 << 11) << 12).astype(np.uint32))
    full = _compose(rng, finite(64, 190), _fractions(rng, count))
    root = np.where(rng.random(count) < 0.5, short, full).view(np.float32)
    square = (root * root).view(np.uint32) + finite(-1, 2).astype(np.uint32)
    return square, square


def fp32_operands(seed: int, count: int, operation: str) -> tuple[Bits, Bits]:
    """``count`` operand pairs, one half random bits and one half :func:`directed`."""
    rng = np.random.default_rng([seed, len(operation), ord(operation[0])])
    half = count // 2
    with np.errstate(all="ignore"):
        first, second = directed(rng, count - half, operation)
    if operation == "sqrt":
        # Few negative numbers, since all of them but zero have the same result.
        first = np.where(rng.random(len(first)) < 0.9, first & ~_SIGN, first)
    return (
        np.concatenate([uniform_bits(rng, half), first]).astype(np.uint32),
        np.concatenate([uniform_bits(rng, half), second]).astype(np.uint32),
    )
