"""The reference model of the programmable PIM's kernels: against float64, published vectors, and
by hand."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from golden.philox import philox
from golden.pim import kernels
from golden.pim.kernels import Pooling
from hw_tests.golden.exp_log_error import worst

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
RNG = np.random.default_rng(SEED)
F = np.float32


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def bits(values: np.ndarray) -> list[int]:
    return values.view(np.uint32).tolist()


@pytest.mark.parametrize(("name", "bound"), [("exp", 1.0), ("log", 0.84)])
def test_errors_are_below_what_the_page_says(name: str, bound: float) -> None:
    assert bound - 0.5 < worst(name, 10_007 + 2 * SEED) < bound


def test_special_values_of_exp_and_log() -> None:
    nan = np.array([0xFFC12345], np.uint32).view(np.float32)
    x = np.concatenate([floats(-math.inf, -104.5, -0.0, 0.0, 88.8, math.inf), nan])
    assert bits(kernels.exp(x)) == bits(floats(0, 0, 1, 1, math.inf, math.inf, math.nan))
    x = np.concatenate([floats(-math.inf, -1e-45, -0.0, 0.0, 1, math.inf), nan])
    expected = floats(math.nan, math.nan, -math.inf, -math.inf, 0, math.inf, math.nan)
    assert bits(kernels.log(x)) == bits(expected)
    assert bits(kernels.exp(floats(-103.5))) == [1]  # the least subnormal number


def test_dropout_keeps_its_share() -> None:
    x = np.ones(40_001, np.float32)
    kept = kernels.dropout(x, (SEED, 7), 3, 1 << 30, F(4 / 3))
    assert set(bits(kept)) == set(bits(floats(0, 4 / 3)))
    assert abs(np.count_nonzero(kept) / x.size - 0.75) < 0.01
    assert not np.array_equal(kept, kernels.dropout(x, (SEED, 7), 4, 1 << 30, F(4 / 3)))


def test_dropout_keeps_the_word_that_is_the_threshold() -> None:
    word = philox((0, 3, 0, 0), (SEED, 7))[1]
    for threshold, kept in ((word, 1), (word + 1, 0)):
        assert kernels.dropout(floats(1, 1), (SEED, 7), 3, threshold, F(1))[1] == kept


def test_maxima_are_those_of_ieee_754_and_the_first_of_equals_gets_the_gradient() -> None:
    nan = math.nan
    x = floats(-0.0, 0.0, 2, 2, 1, nan, nan, -3).reshape(1, 1, 8)
    pooling = Pooling(
        height=1, width=8, rows=1, columns=4, window_height=1, window_width=2, stride=2
    )
    assert bits(kernels.max_pool(x, pooling).ravel()) == bits(floats(0, 2, nan, nan))
    dx = kernels.max_pool_gradient(x, floats(1, 2, 3, 4).reshape(1, 1, 4), pooling)
    assert dx.ravel().tolist() == [0, 1, 2, 0, 0, 3, 4, 0]


def test_windows_that_overlap_and_padding_by_hand() -> None:
    pooling = Pooling(
        height=2, width=3, rows=2, columns=2, window_height=2, window_width=2, stride=2,
        pad_top=1, pad_left=1,
    )  # fmt: skip
    x = np.arange(-6, 0, dtype=np.float32).reshape(1, 2, 3)
    assert kernels.max_pool(x, pooling).ravel().tolist() == [-6, -4, -3, -1]
    assert kernels.average_pool(x, pooling).ravel().tolist() == [-6, -4.5, -3, -1.5]
    dy = floats(1, 2, 4, 8).reshape(1, 2, 2)
    assert kernels.average_pool_gradient(dy, pooling).ravel().tolist() == [1, 1, 1, 4, 4, 4]
    twice = Pooling(height=1, width=3, rows=1, columns=2, window_height=1, window_width=2, stride=1)
    line = floats(1, 5, 2).reshape(1, 1, 3)
    dx = kernels.max_pool_gradient(line, floats(3, 4).reshape(1, 1, 2), twice)
    assert dx.ravel().tolist() == [0, 7, 0]


def test_relu() -> None:
    x = floats(-0.0, 0.0, -1, 1e-45, math.inf, math.nan)
    assert bits(kernels.relu(x)) == bits(floats(0, 0, 0, 1e-45, math.inf, math.nan))
    dy = floats(1, 1, 1, -0.0, 3, 1)
    assert bits(kernels.relu_gradient(x, dy)) == bits(floats(0, 0, 0, -0.0, 3, 0))


def test_softmax_cross_entropy_is_that_of_float64() -> None:
    x = RNG.standard_normal((7, 11)).astype(np.float32) * F(4)
    labels = RNG.integers(0, 11, 7)
    loss, dx = kernels.softmax_cross_entropy(x, labels, F(0.5))
    powers = np.exp(x.astype(np.float64))
    share = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(share[np.arange(7), labels]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dx, (share - np.eye(11)[labels]) / 2, rtol=1e-5, atol=1e-7)
    loss, dx = kernels.softmax_cross_entropy(x, np.full(7, 11), F(1))
    assert bits(loss) == [0x7FC00000] * 7
    assert np.isnan(dx).all()


def test_batch_normalisation_is_that_of_float64() -> None:
    shape, eps = (5, 3, 7), 1e-3
    x, dy = (RNG.standard_normal(shape).astype(np.float32) for _ in range(2))
    gamma, beta = (RNG.standard_normal(3).astype(np.float32) for _ in range(2))
    mean, inverse = kernels.moments(x, F(eps))
    y = kernels.normalise(x, mean, inverse, gamma, beta)

    def exact(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
        middle = x.mean(axis=(0, 2), keepdims=True)
        root = np.sqrt(x.var(axis=(0, 2), keepdims=True) + eps)
        return (x - middle) / root * gamma[:, None] + beta[:, None]

    wide = [each.astype(np.float64) for each in (x, gamma, beta)]
    np.testing.assert_allclose(y, exact(*wide), rtol=1e-4, atol=1e-5)
    gradients = kernels.normalise_gradient(x, dy, mean, inverse, gamma)
    for place, gradient in enumerate(gradients):
        for index in [tuple(RNG.integers(0, gradient.shape)) for _ in range(5)]:
            loss = []
            for step in (1e-5, -1e-5):
                moved = [each.copy() for each in wide]
                moved[place][index] += step
                loss.append(np.sum(exact(*moved) * dy))
            slope = (loss[0] - loss[1]) / 2e-5
            assert gradient[index] == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_bias_and_its_gradient_by_hand() -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    added = kernels.bias(x, floats(10, 20))
    assert added.ravel().tolist() == [10, 11, 22, 23, 14, 15, 26, 27]
    assert kernels.bias_gradient(x).tolist() == [10, 18]
    # One after the other: 2^24 + 1 is rounded to 2^24 each time.
    assert kernels.bias_gradient(floats(2**24, 1, 1).reshape(3, 1, 1)).tolist() == [2**24]
