"""Every operation of a rule and of a sum against the exact model, in the normative order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from golden import floats
from golden.rules import operand, ordered_sum, reference
from hw.dataflow.flow import FlowValue
from hw.rules import RULES
from hw_tests.float.vectors import SPECIAL, uniform_bits
from hw_tests.rules.hyperparameters import hyperparameters

FP32 = floats.BinaryFormat(exponent_bits=8, fraction_bits=23)
FORMATS = {"kept": FP32, "flushed": replace(FP32, subnormals=False)}
SETS = 300


class _ExactFlow:
    """Computes where a pipeline would place operators."""

    def __init__(self, form: floats.BinaryFormat) -> None:
        self.form = form

    def operate(self, _: Any, symbol: str, *operands: _Exact) -> _Exact:
        operations = {"+": floats.add, "*": floats.mul, "/": floats.div}
        operation = operations.get(symbol) or getattr(floats, symbol)
        return _Exact(self, operation(self.form, *(operand.bits for operand in operands)))


class _Exact(FlowValue):
    """A number that the rule's own formula, which is the specification, can be called with."""

    def __init__(self, flow: Any, bits: int) -> None:
        super().__init__(flow, "", 0)
        self.bits = bits

    def __neg__(self) -> _Exact:
        return _Exact(self.flow, self.bits ^ 1 << 31)

    def __sub__(self, other: FlowValue) -> FlowValue:
        return self + -other


def _bits(rng: np.random.Generator, count: int) -> np.ndarray:
    """Ordinary numbers, tiny ones whose squares vanish, those next to the least normal number,
    special ones and any bits, mixed."""
    signed = np.concatenate([SPECIAL, SPECIAL | np.uint32(1 << 31)])
    kinds = [
        rng.standard_normal(count).astype(np.float32).view(np.uint32),
        (10 ** rng.uniform(-45, -15, count)).astype(np.float32).view(np.uint32),
        (uniform_bits(rng, count) & 0x81FFFFFF) | 0x00800000,
        rng.choice(signed, count),
        uniform_bits(rng, count),
    ]
    return np.choose(rng.choice(5, count, p=[0.3, 0.1, 0.3, 0.15, 0.15]), kinds).astype(np.uint32)


@pytest.mark.parametrize("subnormals", FORMATS)
@pytest.mark.parametrize("constants", ["usual", "first step", "negative", "any"])
@pytest.mark.parametrize("name", RULES)
def test_each_operation_is_rounded_exactly(name: str, constants: str, subnormals: str) -> None:
    rule, model = RULES[name], reference(name, subnormals)
    flow = _ExactFlow(FORMATS[subnormals])
    rng = np.random.default_rng(5)
    if constants == "any":
        # The registers take whatever is written to them.
        chosen = dict(zip(rule.constants, _bits(rng, len(rule.constants)), strict=True))
    else:
        rounded = model.constants(**hyperparameters(name, 1 if constants == "first step" else 7))
        sign = np.uint32((constants == "negative") << 31)
        chosen = {each: value.view(np.uint32) ^ sign for each, value in rounded.items()}
    tensors = {each: _bits(rng, SETS) for each in rule.tensors}
    for place, bits in enumerate(tensors.values()):
        # Zeros of all signs, of which some operations choose one.
        zeros = np.arange(1 << len(tensors), dtype=np.uint32) >> np.uint32(place)
        bits[: len(zeros)] = zeros << np.uint32(31)
    found = model.step(
        {each: bits.view(np.float32) for each, bits in tensors.items()},
        {each: bits.view(np.float32) for each, bits in chosen.items()},
    )
    operands = {each: _Exact(flow, int(bits)) for each, bits in chosen.items()}
    exact = [
        rule.formula(
            **operands, **{each: _Exact(flow, int(tensors[each][at])) for each in rule.inputs}
        )
        for at in range(SETS)
    ]
    for each in rule.outputs:
        assert [result[each].bits for result in exact] == found[each].view(np.uint32).tolist(), each
    for each in rule.sums:
        wanted = _scalar_sum([result[each].bits for result in exact], flow.form)
        assert wanted == found[each].view(np.uint32)


def _tree(values: list[int], form: floats.BinaryFormat) -> int:
    """Neighbours first."""
    if len(values) == 1:
        return values[0]
    pairs = zip(values[::2], values[1::2], strict=True)
    return _tree([floats.add(form, one, other) for one, other in pairs], form)


def _scalar_sum(values: list[int], form: floats.BinaryFormat = FP32) -> int:
    """The sum as the specification says it, one number after the other."""
    accumulators = [0] * 16
    for index in range(-(-len(values) // 16)):
        line = values[16 * index :][:16]
        line += [0] * (16 - len(line))
        place = index % 16
        accumulators[place] = floats.add(form, accumulators[place], _tree(line, form))
    return _tree(accumulators, form)


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 31, 255, 256, 257, 500, 30_005])
def test_a_sum_has_the_normative_order(count: int) -> None:
    rng = np.random.default_rng(count)
    # Of different sizes and mostly of one sign, so that another order gives another sum.
    values = (rng.normal(2, 1, count) * 10 ** rng.uniform(-1, 1, count)).astype(np.float32)
    assert _scalar_sum(values.view(np.uint32).tolist()) == ordered_sum(values).view(np.uint32)


@pytest.mark.parametrize(
    ("bits", "wanted"),
    [
        ([0x80000000] * 256, 0),
        ([0x7F7FFFFF] * 2, 0x7F800000),
        ([0x7F800000, 0xFF800000], 0x7FC00000),
        ([0] * 99 + [0xFFC12345], 0x7FC00000),
        ([1] * 300, 300),
    ],
    ids=["negative zeros", "overflow", "infinities", "a NaN", "subnormal numbers"],
)
def test_special_sums(bits: list[int], wanted: int) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        assert int(ordered_sum(values).view(np.uint32)) == wanted == _scalar_sum(bits)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 31, 255, 256, 257, 500])
def test_a_sum_of_flushed_numbers(count: int) -> None:
    rng = np.random.default_rng(count)
    # So small that half of the differences are flushed, some to -0, which later lines may keep.
    for _ in range(20):
        values = rng.integers(-3, 4, count) * 2.0**-126 + rng.integers(-1, 2, count) * 2.0**-128
        bits = values.astype(np.float32).view(np.uint32)
        found = ordered_sum(bits.view(np.float32), "flushed")
        assert found.view(np.uint32) == _scalar_sum(bits.tolist(), FORMATS["flushed"])


def test_a_product_is_flushed_before_it_is_rounded_to_the_least_normal_number() -> None:
    bits = [0x00FFFFFF, 0x3F000000]
    one, other = np.array([bits], np.uint32).view(np.float32).T
    for subnormals, wanted in (("kept", 0x00800000), ("flushed", 0)):
        assert floats.mul(FORMATS[subnormals], *bits) == wanted
        assert np.asarray(operand(one, subnormals) * other).view(np.uint32) == wanted


def test_an_accumulator_of_minus_zero_stays_one() -> None:
    values = np.zeros((37, 16), np.float32)
    values[:16, 0] = 2.0**-126
    values[16:32, 0] = -1.25 * 2.0**-126
    values[32:] = -0.0
    minus_zero = 1 << 31
    assert _scalar_sum(values.view(np.uint32).ravel().tolist(), FORMATS["flushed"]) == minus_zero
    assert ordered_sum(values, "flushed").view(np.uint32) == minus_zero
