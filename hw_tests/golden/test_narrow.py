"""BF16, 8-bit states and stochastic rounding against the exact model, and by hand."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from golden import floats, narrow
from golden.philox import philox
from golden.rules import reference
from hw_tests.float.vectors import SPECIAL, uniform_bits
from hw_tests.rules.hyperparameters import hyperparameters

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
FP32 = floats.BinaryFormat(exponent_bits=8, fraction_bits=23)
BF16 = floats.BinaryFormat(exponent_bits=8, fraction_bits=7)
NAN, INFINITY = 0x7FC00000, 0x7F800000
LEAST = 2.0**-149


def bits(*values: int) -> np.ndarray:
    """FP32 of bits."""
    return np.array(values, np.uint32).view(np.float32)


def edges(rng: np.random.Generator, count: int) -> np.ndarray:
    """FP32: special numbers, ties of BF16 with their neighbours, and any, of both signs."""
    upper = rng.integers(0, 1 << 16, count, dtype=np.uint32) << np.uint32(16)
    ties = upper + rng.choice([0x7FFF, 0x8000, 0x8001], count).astype(np.uint32)
    every = np.concatenate([SPECIAL, [0x7F7F7FFF, 0x7F7F8000], ties, uniform_bits(rng, count)])
    return np.concatenate([every, every | 1 << 31]).astype(np.uint32).view(np.float32)


def order(value: int) -> int:
    """Integers that are ordered as FP32 of these bits."""
    sign, magnitude = FP32.split(value)
    return -magnitude if sign else magnitude


def block(*values: float) -> np.ndarray:
    return np.append(np.array(values, np.float32), np.zeros(256 - len(values), np.float32))


def test_every_bf16_number_is_exact_in_fp32_and_comes_back() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = narrow.from_bf16(every)
    for narrow_bits, wide_bits in enumerate(wide.view(np.uint32).tolist()):
        if BF16.is_nan(narrow_bits):
            assert wide_bits == NAN
        elif not BF16.is_infinite(narrow_bits):
            assert FP32.split(wide_bits)[0] == BF16.split(narrow_bits)[0]
            assert FP32.value(wide_bits) == BF16.value(narrow_bits)
    assert wide.view(np.uint32)[[0x7F80, 0xFF80]].tolist() == [INFINITY, 0xFF800000]
    expected = np.where(np.isnan(wide), 0x7FC0, every)
    assert np.array_equal(narrow.to_bf16(wide), expected)
    words = np.full(1 << 16, 0xFFFF, np.uint16)
    assert np.array_equal(narrow.to_bf16_stochastic(wide, words), expected)


def test_bf16_is_rounded_to_nearest_even() -> None:
    values = edges(np.random.default_rng(SEED), 10_000)
    for wide, found in zip(values.view(np.uint32).tolist(), narrow.to_bf16(values), strict=True):
        sign, magnitude = FP32.split(wide)
        wanted = BF16.nan
        if magnitude == FP32.infinity:
            wanted = BF16.join(sign, BF16.infinity)
        elif magnitude < FP32.infinity:
            wanted = BF16.round(sign, abs(FP32.value(wide)))
        assert found == wanted, f"{wide:08x}: {found:04x}, {wanted:04x}"


def test_stochastic_rounding_by_hand() -> None:
    values = bits(0x3F80C000, 0x3F80C000, 0xBF80C000, 0x7F7F0001, 0x00000001, INFINITY, 0xFFC12345)
    words = np.array([0x3FFF, 0x4000, 0x4000, 0xFFFF, 0xFFFF, 0xFFFF, 0], np.uint16)
    found = narrow.to_bf16_stochastic(values, words).tolist()
    assert found == [0x3F80, 0x3F81, 0xBF81, 0x7F80, 0x0001, 0x7F80, 0x7FC0]


def test_stochastic_rounding_is_right_on_the_average() -> None:
    """Each of the 65,536 words once: away from zero as often as what is cut off is large."""
    words = np.arange(1 << 16, dtype=np.uint16)
    for value in (0x3F80C000, 0xC1234567, 0x00012345):
        rounded = narrow.to_bf16_stochastic(np.repeat(bits(value), 1 << 16), words)
        assert np.count_nonzero(rounded != value >> 16) == value & 0xFFFF


def test_random_words_are_those_of_the_counter() -> None:
    seed, t = 0x0123456789ABCDEF, 0x1_0000_0007
    words = narrow.random_words(1003, seed, t)
    for index in (0, 1, 7, 8, 1002):
        block_words = philox((index // 8, 0, 7, 0), (0x89ABCDEF, 0x01234567))
        half = block_words[index % 8 // 2] >> 16 * (index % 2) & 0xFFFF
        assert words[index] == half
    assert len(words) == 1003


@pytest.mark.parametrize("name", narrow.TABLES)
def test_tables_are_the_exact_numbers_rounded_once(name: str) -> None:
    kind, sign = name.split("_")
    if kind == "linear":
        exact = [Fraction(code, 255) for code in range(256)]
        if sign == "signed":
            exact = [Fraction(code, 127) for code in range(-127, 128)] + [Fraction(1)]
    else:
        # The paper's tree: zeros after the sign, a one, and what is left for a cell from 0.1 to 1.
        exact = [Fraction(0), Fraction(1)]
        width = 7 if sign == "signed" else 8
        for code in range(2 if width == 8 else 1, 1 << width):
            fraction_bits = code.bit_length() - 1
            cell = Fraction(2 * (code - (1 << fraction_bits)) + 1, 2 << fraction_bits)
            value = (Fraction(1, 10) + Fraction(9, 10) * cell) / 10 ** (width - 1 - fraction_bits)
            exact += [value, -value] if sign == "signed" else [value]
    table = narrow.table(name).view(np.uint32).tolist()
    assert table == [FP32.round(value < 0, abs(value)) for value in sorted(exact)]
    for low, high, middle in zip(
        table, table[1:], narrow.thresholds(name).view(np.uint32).tolist(), strict=False
    ):
        half = (FP32.value(low) + FP32.value(high)) / 2
        assert middle == FP32.round(half < 0, abs(half))
    assert narrow.table(name)[narrow.code_of_zero(name)] == 0


def test_a_table_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'dynamic', expected one of linear_signed"):
        narrow.table("dynamic")


@pytest.mark.parametrize("subnormals", ["kept", "flushed"])
@pytest.mark.parametrize("name", narrow.TABLES)
def test_codes_are_those_of_the_exact_model(name: str, subnormals: str) -> None:
    form = replace(FP32, subnormals=subnormals == "kept")
    rng = np.random.default_rng(SEED)
    usual = rng.standard_normal((3, 256)) * 10.0 ** rng.uniform(-8, 0, (3, 256))
    tiny = rng.integers(-300, 300, (1, 256)) * LEAST * 2.0 ** rng.integers(0, 24, (1, 256))
    # Thresholds and their neighbours, of a block with the scale 1.
    around = narrow.thresholds(name)[rng.integers(0, 255, 255)].view(np.int32)
    around = (around + rng.integers(-1, 2, 255).astype(np.int32)).view(np.float32)
    directed = [usual.ravel(), tiny.ravel(), around, [1]]
    values = np.concatenate([np.array(each, np.float32) for each in directed])
    # Blocks at the two ends of the exponents, where reciprocals are infinite or subnormal.
    low, high = uniform_bits(rng, 512).reshape(2, 256) & np.uint32(0x80FFFFFF)
    values = np.append(values, np.append(low, high | np.uint32(0x7E000000)).view(np.float32))
    quantized = narrow.quantize(values, name, subnormals)
    back = narrow.dequantize(quantized, name, subnormals).view(np.uint32).reshape(-1, 256)
    limits = [order(each) for each in narrow.thresholds(name).view(np.uint32).tolist()]
    table = narrow.table(name).view(np.uint32).tolist()
    for number, row in enumerate(values.view(np.uint32).reshape(-1, 256).tolist()):
        scale = max(FP32.split(each)[1] for each in row)
        assert scale == quantized.scales.view(np.uint32)[number]
        inverse = floats.div(form, 0x3F800000, scale)
        for place, each in enumerate(row):
            normal = floats.mul(form, each, inverse)
            wanted = bisect_left(limits, order(normal))  # how many are less
            if FP32.is_nan(normal):
                wanted = narrow.code_of_zero(name)
            found = quantized.codes[256 * number + place]
            assert found == wanted, f"{each:08x} of {scale:08x}"
            assert back[number, place] == floats.mul(form, table[found], scale)


@pytest.mark.parametrize("name", narrow.TABLES)
def test_no_code_is_nearer(name: str) -> None:
    rng = np.random.default_rng(SEED)
    values = (rng.standard_normal(1 << 14) * 10 ** rng.uniform(-6, 0, 1 << 14)).astype(np.float32)
    if name.endswith("unsigned"):
        values = values * values
    quantized = narrow.quantize(values, name)
    normal = values / np.repeat(quantized.scales, 256).astype(np.float64)
    table = narrow.table(name).astype(np.float64)
    least = np.abs(normal[:, None] - table).min(axis=1)
    assert (np.abs(normal - table[quantized.codes]) <= least + 2.0**-23).all()


@pytest.mark.parametrize("name", narrow.TABLES)
def test_special_blocks(name: str) -> None:
    zero = narrow.code_of_zero(name)
    largest = int(np.flatnonzero(narrow.thresholds(name) < 1)[-1]) + 1
    rows = [
        block(0),  # stays zeros, though 0 * infinity is none
        block(1, bits(0xFFC12345)[0], np.inf),
        block(1, np.inf),
        block(3e38, 1e-3),
        block(2.0**-127, 2.0**-128),  # whose reciprocal is subnormal by a factor of 2 only
        block(LEAST, 0),  # whose reciprocal is infinite
    ]
    quantized = narrow.quantize(np.concatenate(rows), name)
    expected = [
        0,
        NAN,
        INFINITY,
        *(int(np.float32(x).view(np.uint32)) for x in (3e38, 2.0**-127)),
        1,
    ]
    assert quantized.scales.view(np.uint32).tolist() == expected
    first = quantized.codes.reshape(-1, 256)[:, :2].tolist()
    half = int(np.count_nonzero(narrow.thresholds(name) < 0.5))
    assert first[:4] == [[zero, zero], [zero, zero], [zero, zero], [largest, zero]]
    assert first[4] == [largest, half]
    assert first[5] == [255, zero]
    values = narrow.dequantize(quantized, name).reshape(-1, 256)
    assert np.isnan(values[1:3]).all()
    assert not values[0].view(np.uint32).any()
    assert values[5, 0] == np.float32(LEAST)
    fresh = narrow.Quantized(codes=np.zeros(256, np.uint8), scales=np.zeros(1, np.float32))
    assert (narrow.dequantize(fresh, name) == 0).all()


def test_a_block_that_is_not_full_is_refused() -> None:
    with pytest.raises(ValueError, match=r"300 values do not fill blocks of 256: .* 212 of them"):
        narrow.quantize(np.zeros(300, np.float32), "linear_signed")


FORMATS = [
    {},
    {"g": "bf16"},
    {"g": "bf16", "m": "dynamic_signed", "v": "dynamic_unsigned"},
    {"g": "bf16", "p": "bf16", "m": "dynamic_signed", "v": "dynamic_unsigned"},
    {"p": "bf16", "m": "linear_signed", "v": "linear_unsigned"},
]


@pytest.mark.parametrize("subnormals", ["kept", "flushed"])
@pytest.mark.parametrize("rule", ["adam", "adamw"])
@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_a_step_is_that_of_fp32_between_two_conversions(
    formats: dict[str, str], rule: str, subnormals: str
) -> None:
    model = reference(rule, subnormals)
    constants = model.constants(**hyperparameters(rule, 3))
    rng = np.random.default_rng(SEED)
    plain = {name: rng.standard_normal(512).astype(np.float32) for name in model.inputs}
    plain["v"] = plain["v"] ** 2
    # Values and reciprocals that are subnormal.
    for name, tiny, huge in (("m", 1e-38, 8e37), ("g", 1e-38, 3e38)):
        plain[name][:256] *= np.float32(tiny)
        plain[name][256:] = np.float32(huge)
    held, given = {}, {}
    for name, values in plain.items():
        form = formats.get(name, "fp32")
        if form == "fp32":
            held[name] = given[name] = values
        elif form == "bf16":
            held[name] = narrow.to_bf16(values)
            given[name] = narrow.from_bf16(held[name])
        else:
            held[name] = narrow.quantize(values, form, subnormals)
            given[name] = narrow.dequantize(held[name], form, subnormals)
    wanted = model.step(given, constants)
    found, wrong = narrow.step(
        model, held, constants, formats, t=3, seed=SEED, copy="bf16", skip_not_finite=True
    )
    assert wrong == 0
    assert found.keys() == {"p", "m", "v", "p_copy"}
    assert np.array_equal(found["p_copy"], narrow.to_bf16(wanted["p"]))
    for name in model.outputs:
        form = formats.get(name, "fp32")
        if form == "fp32":
            assert np.array_equal(found[name].view(np.uint32), wanted[name].view(np.uint32))
        elif form == "bf16":
            words = narrow.random_words(512, SEED, 3)
            assert np.array_equal(found[name], narrow.to_bf16_stochastic(wanted[name], words))
        else:
            again = narrow.quantize(wanted[name], form, subnormals)
            assert np.array_equal(found[name].codes, again.codes)
            assert np.array_equal(found[name].scales, again.scales)


@pytest.mark.parametrize("form", ["fp32", "bf16"])
def test_gradients_that_are_not_finite(form: str) -> None:
    model = reference("adam")
    constants = model.constants(**hyperparameters("adam", 1))
    tensors = {name: np.zeros(256, np.float32) for name in model.inputs}
    tensors["g"][[3, 5, 200]] = np.inf, -np.inf, np.nan
    if form == "bf16":
        tensors["g"] = narrow.to_bf16(tensors["g"])
    formats = {"g": form}
    stepped, wrong = narrow.step(model, tensors, constants, formats, t=1, copy="fp32")
    assert wrong == 3
    assert np.flatnonzero(~np.isfinite(stepped["m"])).tolist() == [3, 5, 200]
    assert np.array_equal(stepped["p"], stepped["p_copy"], equal_nan=True)
    stayed, wrong = narrow.step(
        model, tensors, constants, formats, t=1, copy="fp32", skip_not_finite=True
    )
    assert wrong == 3
    assert stayed.keys() == {"p", "m", "v"}
    assert all(stayed[name] is tensors[name] for name in stayed)


@pytest.mark.parametrize("form", ["fp32", "bf16", *narrow.TABLES])
def test_what_is_encoded_is_decoded(form: str) -> None:
    values = np.random.default_rng(SEED).random(512, dtype=np.float32)
    found = narrow.decode(narrow.encode(values, form), form)
    error = np.abs(found - values).max()
    assert error == 0 if form == "fp32" else 0 < error < 0.04


def test_scales_lie_in_pairs_in_memory() -> None:
    rng = np.random.default_rng(SEED)
    values = {name: rng.standard_normal(512).astype(np.float32) for name in "pmv"}
    m, v = (narrow.quantize(values[name], "dynamic_signed") for name in "mv")
    held = narrow.packed({"p": values["p"], "m": m, "v": v})
    assert held.keys() == {"p", "m", "v", "scales"}
    pairs = [m.scales[0], v.scales[0], m.scales[1], v.scales[1]]
    assert held["scales"].tolist() == pairs
    assert held["m"] is m.codes
    again = narrow.unpacked(held, "mv")
    assert again.keys() == {"p", "m", "v"}
    assert again["v"].codes is v.codes
    assert np.array_equal(again["v"].scales, v.scales)
    assert narrow.packed(values) == values == narrow.unpacked(values, ())
