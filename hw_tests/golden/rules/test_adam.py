"""The Adam reference model against textbook Adam in double, the exact model, and its own rules."""

from __future__ import annotations

import numpy as np
import pytest

from golden import floats
from golden.rules.adam import CANONICAL_NAN, adam_constants, adam_step
from hw_tests.rules.adam_vectors import hyper_parameters, operands

FP32 = floats.BinaryFormat(exponent_bits=8, fraction_bits=23)
USUAL = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}


def test_constants_are_rounded_once() -> None:
    constants = adam_constants(**USUAL, t=3)  # pyright: ignore
    assert constants.one_minus_beta1 == np.float32(1 - 0.9)
    assert constants.one_minus_beta2 == np.float32(1 - 0.999)
    assert constants.one_minus_beta2 != np.float32(1) - np.float32(0.999)
    assert constants.inv_bc2 == np.float32(1 / (1 - 0.999**3))
    assert constants.lam == np.float32(0.01)
    assert all(value.dtype == np.float32 for value in constants)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"beta1": 1.0}, "beta1 is 1.0"),
        ({"beta2": -0.1}, "beta2 is -0.1"),
        ({"t": 0}, "t is 0"),
        ({"lr": 1e39}, "lr is 1e\\+39"),
        ({"eps": float("nan")}, "eps is nan"),
    ],
)
def test_constants_refuse(changed: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adam_constants(**{**USUAL, "t": 1, **changed})  # pyright: ignore


def test_step_follows_adam_in_double() -> None:
    rng = np.random.default_rng(1)
    p = rng.standard_normal(1000).astype(np.float32)
    m, v = np.zeros_like(p), np.zeros_like(p)
    exact_p, exact_m, exact_v = (array.astype(np.float64) for array in (p, m, v))
    for t in range(1, 51):
        g = rng.standard_normal(1000).astype(np.float32)
        p, m, v = adam_step(p, g, m, v, adam_constants(**USUAL, t=t))  # pyright: ignore
        exact_g = g + 0.01 * exact_p
        exact_m = 0.9 * exact_m + 0.1 * exact_g
        exact_v = 0.999 * exact_v + 0.001 * exact_g**2
        step = exact_m / (1 - 0.9**t) / (np.sqrt(exact_v / (1 - 0.999**t)) + 1e-8)
        exact_p = exact_p - 1e-3 * step
    # Fifty steps of a thousandth: the rounding errors of a few operations on numbers near 1.
    np.testing.assert_allclose(p, exact_p, rtol=0, atol=1e-5)
    np.testing.assert_allclose(m, exact_m, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(v, exact_v, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", hyper_parameters())
def test_each_operation_is_rounded_exactly(name: str) -> None:
    constants = hyper_parameters()[name]
    given = operands(5, 400)
    results = adam_step(*given, constants)
    c = {key: int(value.view(np.uint32)) for key, value in constants._asdict().items()}
    rows = np.stack([array.view(np.uint32) for array in (*given, *results)], axis=1)

    def add(a: int, b: int) -> int:
        return floats.add(FP32, a, b)

    def mul(a: int, b: int) -> int:
        return floats.mul(FP32, a, b)

    for p, g, m, v, *expected in rows.tolist():
        g = add(g, mul(c["lam"], p))
        m = add(mul(c["beta1"], m), mul(c["one_minus_beta1"], g))
        v = add(mul(c["beta2"], v), mul(c["one_minus_beta2"], mul(g, g)))
        root = add(floats.sqrt(FP32, mul(v, c["inv_bc2"])), c["eps"])
        u = floats.div(FP32, mul(m, c["inv_bc1"]), root)
        p = add(p, mul(c["lr"], u) ^ 1 << 31)
        assert [p, m, v] == expected


def test_nan_is_canonical_and_arguments_stay() -> None:
    odd_nan = np.array([0xFFC12345], dtype=np.uint32).view(np.float32)
    one = np.ones(1, dtype=np.float32)
    given = (one.copy(), odd_nan.copy(), one.copy(), one.copy())
    results = adam_step(*given, adam_constants(**USUAL, t=1))  # pyright: ignore
    assert [int(array.view(np.uint32)[0]) for array in results] == [CANONICAL_NAN] * 3
    assert int(given[1].view(np.uint32)[0]) == 0xFFC12345


def test_subnormal_second_moment_is_kept() -> None:
    tiny = np.array([1e-42], dtype=np.float32)
    zero = np.zeros(1, dtype=np.float32)
    constants = adam_constants(1e-3, 0.9, 0.5, 1e-8, 0.0, 1)
    assert adam_step(zero, zero, zero, tiny, constants)[2][0] == tiny[0] / 2 > 0


def test_refuses_double() -> None:
    wide = np.zeros(3)
    narrow = np.zeros(3, dtype=np.float32)
    constants = adam_constants(**USUAL, t=1)  # pyright: ignore
    with pytest.raises(TypeError, match="g is of type float64"):
        adam_step(narrow, wide, narrow, narrow, constants)  # pyright: ignore
