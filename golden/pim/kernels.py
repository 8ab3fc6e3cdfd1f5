"""Results of the kernels of the programmable PIM, bit for bit (``docs/pim-kernels.md``).

All is FP32, in the order that the page states. Every operation is rounded to nearest even on its
own, subnormal numbers are kept, and every NaN in a result is 0x7FC00000. Adam and SGD are in
``golden/rules``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden.philox import philox
from golden.rules import Floats, canonical

__all__ = [
    "Pooling",
    "average_pool",
    "average_pool_gradient",
    "bias",
    "bias_gradient",
    "dropout",
    "exp",
    "log",
    "max_pool",
    "max_pool_gradient",
    "moments",
    "normalise",
    "normalise_gradient",
    "relu",
    "relu_gradient",
    "softmax_cross_entropy",
]

_LN2 = np.array([0x3F318000, 0xB95E8083], np.uint32).view(np.float32)
_LOG2E = np.uint32(0x3FB8AA3B).view(np.float32)
_EXP = np.array(
    [0x39506967, 0x3AB743CE, 0x3C088908, 0x3D2AA9C1, 0x3E2AAAAA, 0x3F000000], np.uint32
).view(np.float32)
_LOG = np.array(
    [
        *(0x3D9021BB, 0xBDEBD1B8, 0x3DEF251A, 0xBDFE5D4F, 0x3E11E9BF),
        *(0xBE2AAE50, 0x3E4CCEAC, 0xBE7FFFFC, 0x3EAAAAAA),
    ],
    np.uint32,
).view(np.float32)
_ROOT_HALF = 0x3F3504F3
_NAN = np.float32(np.nan)


def _horner(x: Floats, coefficients: Floats) -> Floats:
    result = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def _power(exponents: NDArray[Any]) -> Floats:
    """Return 2 to the power of each exponent, from -126 to 127."""
    return (exponents.astype(np.int64) + 127 << 23).astype(np.uint32).view(np.float32)


def exp(x: Floats) -> Floats:
    """Return e to the power of each element."""
    with np.errstate(all="ignore"):
        inside = np.where((x >= -104) & (x <= 89), x, np.float32(0))
        big = np.float32(12582912)
        n = (inside * _LOG2E + big) - big
        r = (inside - n * _LN2[0]) - n * _LN2[1]
        y = (_horner(r, _EXP) * (r * r) + r) + np.float32(1)
        half = np.floor(n / 2)
        result = (y * _power(half)) * _power(n - half)
        result = np.where(x > 89, np.float32(np.inf), result)
        result = np.where(x < -104, np.float32(0), result)
    return canonical(np.where(np.isnan(x), _NAN, result))


def log(x: Floats) -> Floats:
    """Return the natural logarithm of each element."""
    with np.errstate(all="ignore"):
        small = x < np.float32(2.0**-126)
        scaled = np.where(small, x * np.float32(2.0**23), x)
        finite = np.where((x > 0) & (x < np.inf), scaled, np.float32(1))
        mantissa, exponent = np.frexp(finite)
        # frexp's mantissa is in [0.5, 1); ours is in [sqrt(1/2), sqrt(2)).
        low = mantissa.view(np.uint32) < _ROOT_HALF
        f = np.where(low, mantissa * np.float32(2), mantissa) - np.float32(1)
        e = (exponent - low - np.where(small, 23, 0)).astype(np.float32)
        z = f * f
        y = (_horner(f, _LOG) * f) * z
        y = y + e * _LN2[1]
        y = y - np.float32(0.5) * z
        result = (f + y) + e * _LN2[0]
        result = np.where(x == np.inf, x, result)
        result = np.where(x == 0, np.float32(-np.inf), result)
    return canonical(np.where((x < 0) | np.isnan(x), _NAN, result))


def _order(x: Floats) -> NDArray[np.int64]:
    """Return sort keys in the order of IEEE 754's maximum: -0 below +0, NaN above all."""
    bits = x.view(np.int32).astype(np.int64)
    keys = np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)
    return np.where(np.isnan(x), 1 << 40, keys)


def _running(values: Floats) -> Floats:
    """Return the sum over the first index, added one after the other."""
    return np.add.accumulate(values, axis=0, dtype=np.float32)[-1]


def _results(*arrays: Any) -> Any:
    results = [canonical(np.array(array, np.float32)) for array in arrays]
    return tuple(results) if len(results) > 1 else results[0]


def relu(x: Floats) -> Floats:
    """Return the greater of each element and +0."""
    return _results(np.where(_order(x) > 0, x, np.float32(0)))


def relu_gradient(y: Floats, dy: Floats) -> Floats:
    """Return ``dy`` where ``y`` (result or operand of ReLU) is greater than zero, else +0."""
    return _results(np.where(y > 0, dy, np.float32(0)))


def bias(x: Floats, b: Floats) -> Floats:
    """Return ``x`` (outer, channels, inner) plus each channel's element of ``b``."""
    with np.errstate(all="ignore"):
        return _results(x + b[:, None])


def bias_gradient(dy: Floats) -> Floats:
    """Return the sum of ``dy`` (outer, channels, inner) for each channel."""
    with np.errstate(all="ignore"):
        return _results(_running(_by_channel(dy)))


def _by_channel(x: Floats) -> Floats:
    """Return ``x`` (outer, channels, inner) as (outer x inner, channels)."""
    return x.transpose(0, 2, 1).reshape(-1, x.shape[1])


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """Pooling windows over planes of ``height`` x ``width``.

    Examples
    --------
    >>> import numpy as np
    >>> quarters = {"window_height": 2, "window_width": 2, "stride": 2}
    >>> pooling = Pooling(height=4, width=4, rows=2, columns=2, **quarters)
    >>> max_pool(np.arange(16, dtype=np.float32).reshape(1, 4, 4), pooling)
    array([[[ 5.,  7.],
            [13., 15.]]], dtype=float32)
    """

    height: int
    width: int
    rows: int
    columns: int
    window_height: int
    window_width: int
    stride: int
    pad_top: int = 0
    pad_left: int = 0

    def windows(self) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Yield each result's row and column, and those of its window's elements, row-major."""
        for p, q in product(range(self.rows), range(self.columns)):
            top, left = p * self.stride - self.pad_top, q * self.stride - self.pad_left
            y = [i for i in range(top, top + self.window_height) if 0 <= i < self.height]
            x = [j for j in range(left, left + self.window_width) if 0 <= j < self.width]
            yield p, q, list(product(y, x))


def max_pool(x: Floats, pooling: Pooling) -> Floats:
    """Return each window's greatest element in each plane of ``x`` (planes, height, width)."""
    result = np.empty((len(x), pooling.rows, pooling.columns), np.float32)
    for p, q, place in _greatest(x, pooling):
        result[:, p, q] = place(x)
    return _results(result)


def max_pool_gradient(x: Floats, dy: Floats, pooling: Pooling) -> Floats:
    """Return the gradient of :func:`max_pool`'s operand."""
    dx = np.zeros_like(x)
    with np.errstate(all="ignore"):
        for p, q, place in _greatest(x, pooling):
            place(dx, place(dx) + dy[:, p, q])
    return _results(dx)


def _greatest(x: Floats, pooling: Pooling) -> Iterator[tuple[int, int, Callable[..., Any]]]:
    """Yield each result's row and column, and a function for its greatest elements' places.

    The function returns an array's elements at the first greatest element of each plane's window.
    With a second argument it sets them first.
    """
    planes = np.arange(len(x))
    keys = _order(x)
    for p, q, inside in pooling.windows():
        rows, columns = np.array(inside).T
        best = np.argmax(keys[:, rows, columns], axis=1)

        def place(array: Floats, *value: Any, at: Any = (planes, rows[best], columns[best])) -> Any:
            if value:
                array[at] = value[0]
            return array[at]

        yield p, q, place


def average_pool(x: Floats, pooling: Pooling) -> Floats:
    """Return each window's mean in each plane of ``x`` (planes, height, width)."""
    result = np.empty((len(x), pooling.rows, pooling.columns), np.float32)
    with np.errstate(all="ignore"):
        for p, q, inside in pooling.windows():
            values = np.stack([x[:, i, j] for i, j in inside])
            result[:, p, q] = _running(values) / np.float32(len(inside))
    return _results(result)


def average_pool_gradient(dy: Floats, pooling: Pooling) -> Floats:
    """Return the gradient of :func:`average_pool`'s operand."""
    dx = np.zeros((len(dy), pooling.height, pooling.width), np.float32)
    with np.errstate(all="ignore"):
        for p, q, inside in pooling.windows():
            share = dy[:, p, q] / np.float32(len(inside))
            for i, j in inside:
                dx[:, i, j] = dx[:, i, j] + share
    return _results(dx)


def softmax_cross_entropy(
    x: Floats, labels: NDArray[np.int64], scale: np.float32
) -> tuple[Floats, Floats]:
    """Return the loss of each sample of ``x`` (samples, classes), and the gradient of ``x``.

    The gradient is that of the sum of the losses, times ``scale``. Both are NaN for a sample with
    a label that is no class.
    """
    samples, classes = x.shape
    rows = np.arange(samples)
    good = (labels >= 0) & (labels < classes)
    taken = np.where(good, labels, 0)
    with np.errstate(all="ignore"):
        greatest = x[rows, np.argmax(_order(x), axis=1)]
        shifted = x - greatest[:, None]
        powers = exp(shifted)
        total = np.where(good, _running(powers.T), _NAN)
        loss = log(total) - shifted[rows, taken]
        share = powers / total[:, None]
        share[rows, taken] = share[rows, taken] - np.float32(1)
        return _results(loss, share * scale)


def moments(x: Floats, eps: np.float32) -> tuple[Floats, Floats]:
    """Return each channel's mean and 1 / sqrt(variance + ``eps``).

    ``x`` has the shape (outer, channels, inner).
    """
    values = _by_channel(x)
    n = np.float32(len(values))
    with np.errstate(all="ignore"):
        mean = _running(values) / n
        apart = values - mean
        variance = _running(apart * apart) / n
        return _results(mean, np.float32(1) / np.sqrt(variance + eps))


def normalise(x: Floats, mean: Floats, inverse: Floats, gamma: Floats, beta: Floats) -> Floats:
    """Return ``x`` (outer, channels, inner) with mean ``beta`` and deviation ``gamma``."""
    mean, inverse, gamma, beta = (value[:, None] for value in (mean, inverse, gamma, beta))
    with np.errstate(all="ignore"):
        return _results(((x - mean) * inverse) * gamma + beta)


def normalise_gradient(
    x: Floats, dy: Floats, mean: Floats, inverse: Floats, gamma: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the gradients of ``x``, ``gamma`` and ``beta``.

    ``mean`` and ``inverse`` are the :func:`moments` of ``x``.
    """
    n = np.float32(x.shape[0] * x.shape[2])
    with np.errstate(all="ignore"):
        normal = (x - mean[:, None]) * inverse[:, None]
        dbeta = _running(_by_channel(dy))
        dgamma = _running(_by_channel(dy * normal))
        scales = gamma * inverse, dbeta / n, dgamma / n
        factor, shift, slope = (scale[:, None] for scale in scales)
        dx = factor * ((dy - shift) - normal * slope)
        return _results(dx, dgamma, dbeta)


def dropout(
    x: Floats, key: tuple[int, int], offset: int, threshold: int, scale: np.float32
) -> Floats:
    """Return ``x`` times ``scale``, or +0 where an element's random word is below ``threshold``."""
    blocks = philox((np.arange(-(-x.size // 4), dtype=np.uint64), offset, 0, 0), key)
    words = np.stack(blocks, axis=-1).ravel()[: x.size]
    with np.errstate(all="ignore"):
        return _results(np.where(words >= threshold, x.ravel() * scale, np.float32(0)))
