"""Narrow formats of numbers, bit for bit (``docs/formats.md``).

BF16 arrays are of ``uint16``, codes of ``uint8``, random words of ``uint16``. Rounding and NaN are
as in :mod:`golden.rules`. Conversions keep subnormal numbers; quantizing and dequantizing keep or
flush them as the rule does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.philox import philox
from golden.rules import Floats, Reference, canonical, operand

__all__ = [
    "BLOCK",
    "TABLES",
    "Quantized",
    "code_of_zero",
    "decode",
    "dequantize",
    "encode",
    "from_bf16",
    "packed",
    "quantize",
    "random_words",
    "step",
    "table",
    "thresholds",
    "to_bf16",
    "to_bf16_stochastic",
    "unpacked",
]

BLOCK = 256
"""Values with a common scale."""
TABLES = ("linear_signed", "linear_unsigned", "dynamic_signed", "dynamic_unsigned")
"""Names of the tables of numbers that codes stand for."""
_NAN = 0x7FC0
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """Codes, and a scale for each 256 of them.

    Examples
    --------
    >>> import numpy as np
    >>> values = np.linspace(-3, 3, 256, dtype=np.float32)
    >>> small = quantize(values, "linear_signed")
    >>> small.codes[:4], small.scales
    (array([0, 1, 2, 3], dtype=uint8), array([3.], dtype=float32))
    >>> dequantize(small, "linear_signed")[:2]
    array([-3.      , -2.976378], dtype=float32)
    """

    codes: NDArray[np.uint8]
    scales: Floats


def from_bf16(values: NDArray[np.uint16]) -> Floats:
    """Return FP32 values equal to BF16 values."""
    return canonical((values.astype(np.uint32) << 16).view(np.float32))


def to_bf16(values: Floats) -> NDArray[np.uint16]:
    """Return FP32 values in BF16, rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    # Add a little less than half a unit, or half a unit if the last bit that stays is odd.
    return _upper_half(values, 0x7FFF + (bits >> 16 & 1))


def to_bf16_stochastic(values: Floats, words: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Return FP32 values in BF16, rounded stochastically by random words.

    The probability of rounding away from zero is the part that is cut off.
    """
    return _upper_half(values, words)


def _upper_half(values: Floats, addend: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the upper halves of sums, as BF16.

    A 16-bit addend changes no infinity and takes no finite number beyond infinity.
    """
    upper = (values.view(np.uint32) + addend.astype(np.uint32)) >> 16
    return np.where(np.isnan(values), _NAN, upper).astype(np.uint16)


def random_words(count: int, seed: int, t: int) -> NDArray[np.uint16]:
    """Return a random word for each of ``count`` parameters in step ``t``; ``seed`` has 64 bits."""
    block = np.arange(-(-count // 8), dtype=np.uint64)
    words = philox((block & _MASK, block >> 32, t & _MASK, 0), (seed & _MASK, seed >> 32))
    return np.stack(words, axis=-1).astype("<u4").view("<u2").ravel()[:count]


@cache
def table(name: str) -> Floats:
    """Return the numbers of the 256 codes, in increasing order, before scaling."""
    if name not in TABLES:
        raise ValueError(f"the table is {name!r}, expected one of {', '.join(TABLES)}")
    signed = name.endswith("_signed")
    if name.startswith("linear"):
        exact = [Fraction(code, 255) for code in range(256)]
        if signed:  # one code too many
            exact = [Fraction(min(code, 254) - 127, 127) for code in range(256)]
    else:
        exact = [Fraction(0), Fraction(1)]
        for exponent in range(7):
            # Means of cells of equal width from 0.1 to 1.
            cells = 2**exponent if signed else 2 ** (exponent + 1)
            means = [Fraction(1, 10) + Fraction(9 * (2 * cell + 1), 20 * cells)
                     for cell in range(cells)]  # fmt: skip
            exact += [mean / 10 ** (6 - exponent) for mean in means]
        if signed:
            exact += [-value for value in exact if value not in (0, 1)]
    return np.array(sorted(exact), np.float64).astype(np.float32)


@cache
def thresholds(name: str) -> Floats:
    """Return the 255 numbers halfway between neighbours of :func:`table`."""
    values = table(name).astype(np.float64)  # their sums are exact
    return ((values[:-1] + values[1:]) / 2).astype(np.float32)


def code_of_zero(name: str) -> int:
    """Return the code of the table's zero."""
    return int(np.flatnonzero(table(name) == 0)[0])


def quantize(values: Floats, name: str, subnormals: str = "kept") -> Quantized:
    """Return codes and scales of FP32 values; raise ``ValueError`` for a block that is not full."""
    if values.size % BLOCK:
        raise ValueError(
            f"{values.size} values do not fill blocks of {BLOCK}: append zeros, "
            f"{-values.size % BLOCK} of them"
        )
    blocks = canonical(values.reshape(-1, BLOCK).copy())
    # The bits of magnitudes have the order of the magnitudes, and a NaN is above infinity.
    scales = (blocks.view(np.uint32) & 0x7FFFFFFF).max(axis=1, initial=0).view(np.float32)
    with np.errstate(all="ignore"):
        reciprocals = np.float32(1) / scales
        normal = np.asarray(operand(blocks, subnormals) * reciprocals[:, None])
    codes = np.searchsorted(thresholds(name), normal)  # number of smaller thresholds
    codes = np.where(np.isnan(normal), code_of_zero(name), codes)
    return Quantized(codes=codes.astype(np.uint8).ravel(), scales=scales)


def dequantize(state: Quantized, name: str, subnormals: str = "kept") -> Floats:
    """Return the FP32 values of codes and scales."""
    with np.errstate(all="ignore"):
        values = operand(table(name)[state.codes.reshape(-1, BLOCK)], subnormals)
        return canonical(values * state.scales[:, None]).ravel()


def decode(stored: Any, form: str, subnormals: str = "kept") -> Floats:
    """Return the FP32 values of data in a format: ``fp32``, ``bf16``, or a table."""
    if form == "fp32":
        return stored
    return from_bf16(stored) if form == "bf16" else dequantize(stored, form, subnormals)


def encode(values: Floats, form: str, subnormals: str = "kept") -> Any:
    """Return FP32 values in a format of :func:`decode`, rounded to nearest."""
    if form == "fp32":
        return values
    return to_bf16(values) if form == "bf16" else quantize(values, form, subnormals)


def packed(tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return tensors as in memory: codes of 8-bit states, and the ``scales`` of all."""
    states = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Quantized)}
    arrays = {**tensors, **{name: state.codes for name, state in states.items()}}
    if states:
        arrays["scales"] = np.stack([state.scales for state in states.values()], axis=1).ravel()
    return arrays


def unpacked(tensors: Mapping[str, NDArray[Any]], states: Sequence[str]) -> dict[str, Any]:
    """Return the tensors that :func:`packed` was given; ``states`` names those of 8 bits."""
    arrays: dict[str, Any] = dict(tensors)
    scales = arrays.pop("scales", None)
    for place, name in enumerate(states):
        assert scales is not None
        arrays[name] = Quantized(codes=arrays[name], scales=scales[place :: len(states)])
    return arrays


def step(
    model: Reference,
    tensors: Mapping[str, Any],
    constants: Mapping[str, np.float32],
    formats: Mapping[str, str],
    *,
    t: int,
    seed: int = 0,
    copy: str = "none",
    skip_not_finite: bool = False,
) -> tuple[dict[str, Any], int]:
    """Return the outputs of a step as in memory, and the number of gradients that are not finite.

    Parameters
    ----------
    tensors
        Tensors as in memory: FP32, BF16, or :class:`Quantized`.
    formats
        Format of each tensor, as :func:`decode` takes it; FP32 by default. An output is written in
        the format in which it is read; in BF16 it is rounded stochastically.
    t, seed
        Step and seed of the random words.
    copy
        Format, ``fp32`` or ``bf16``, of another output, ``p_copy``: the new parameters, rounded to
        nearest. ``none`` leaves it out.
    skip_not_finite
        Keep the outputs as they are, and make no copy, if a gradient is not finite.
    """
    form = {name: formats.get(name, "fp32") for name in model.inputs}
    loaded = {name: decode(tensors[name], form[name], model.subnormals) for name in model.inputs}
    wrong = int(np.count_nonzero(~np.isfinite(loaded["g"])))
    if wrong and skip_not_finite:
        return {name: tensors[name] for name in model.outputs}, wrong
    results = model.step(loaded, constants)
    stored: dict[str, Any] = {}
    for name in model.outputs:
        if form[name] == "fp32":
            stored[name] = results[name]
        elif form[name] == "bf16":
            words = random_words(results[name].size, seed, t)
            stored[name] = to_bf16_stochastic(results[name], words)
        else:
            stored[name] = quantize(results[name], form[name], model.subnormals)
    if copy != "none":
        stored["p_copy"] = encode(results["p"], copy)
    return stored, wrong
