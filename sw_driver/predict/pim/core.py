"""Cycles that a core with a float unit takes for the firmware's kernels (``docs/pim-kernels.md``).

Each pass of a kernel's loop takes a fixed number of cycles. Each miss of the data cache (4 KiB,
direct mapped, lines of 32 bytes) takes a read of the memory. Tensors that are a multiple of 4 KiB
apart push each other out of the cache; Adam then takes 1.6 times as long in RTL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sw_driver.numbers import check_name, check_number

__all__ = ["KERNELS", "kernel_cycles", "kernel_work"]

_LINE_BYTES, _LINES = 32, 128
_LINE_CYCLES = 15
"""Core cycles of a read, besides the memory's own latency."""
_WAITS = 18
"""Waits for the memory before and after a kernel: each window, arguments, completion."""
_RING_CYCLES = 95
"""Core cycles in which the firmware checks its ring after a kernel, and places it again."""

Places = NDArray[np.int64]
LoopReads = tuple[Sequence[int], Places]
"""Passes of a kernel's loops and the places that it reads.

The outermost loop is first. Places are offsets in bytes, in the order of the reads.
"""


def _indices(*extents: int) -> list[Places]:
    return list(np.indices(extents, dtype=np.int64).reshape(len(extents), -1))


def _read(*tensors: tuple[int, Places]) -> Places:
    """Return the places of reads that alternate between tensors.

    Each tensor is its offset in bytes and the numbers of the elements read.
    """
    return np.stack([begin + 4 * elements for begin, elements in tensors], axis=-1).reshape(-1)


def _elements(*begins: int, count: int) -> LoopReads:
    elements = np.arange(count)
    return [count], _read(*((begin, elements) for begin in begins)) if begins else elements[:0]


def _relu_gradient(y: int, dy: int, _: int, count: int) -> LoopReads:
    # dy is read only where y is positive, which is assumed of every second element.
    elements = np.arange(count)
    dy_places = np.where(elements % 2, dy + 4 * elements, -1)
    places = np.stack([y + 4 * elements, dy_places], axis=1).reshape(-1)
    return [count], places[places >= 0]


def _copy(x: int, _: int, *shape: int) -> LoopReads:
    extents, strides = shape[:4], shape[4:8]
    at = sum(i * stride for i, stride in zip(_indices(*extents), strides, strict=True))
    return [int(np.prod(extents[:depth])) for depth in (1, 2, 3, 4)], _read((x, np.asarray(at)))


def _by_channel(x: Sequence[int], outer: int, channels: int, inner: int) -> Places:
    channel, o, i = _indices(channels, outer, inner)
    at = (o * channels + channel) * inner + i
    return _read(*((begin, at) for begin in x))


def _channels(outer: int, channels: int, inner: int) -> list[int]:
    return [channels, outer * channels, outer * channels * inner]


def _bias(x: int, b: int, _: int, *extents: int) -> LoopReads:
    outer, channel, inner = _indices(*extents)
    at = (outer * extents[1] + channel) * extents[2] + inner
    return _channels(*extents)[1:], _read((x, at), (b, channel))


def _moments(x: int, *rest: int) -> LoopReads:
    extents = rest[-3:]
    channels = _by_channel([x], *extents).reshape(extents[1], -1)
    return _channels(*extents), np.tile(channels, (1, 2)).reshape(-1)


def _normalise(x: int, *rest: int) -> LoopReads:
    extents = rest[-3:]
    passes = _channels(*extents)[1:]
    # Four numbers of the channel, then its elements.
    numbers = _read(*((begin, np.arange(extents[1])) for begin in rest[:4])).reshape(-1, 4)
    elements = x + 4 * np.arange(passes[1]).reshape(-1, extents[2])
    both = np.concatenate([np.tile(numbers, (extents[0], 1)), elements], axis=1)
    return passes, both.reshape(-1)


def _normalise_gradient(x: int, dy: int, *rest: int) -> LoopReads:
    extents = rest[-3:]
    parts = [_by_channel(begins, *extents) for begins in ([dy], [dy, x], [dy, x])]
    return _channels(*extents), np.concatenate(
        [part.reshape(extents[1], -1) for part in parts], axis=1
    ).reshape(-1)


def _windows(x: int, once: int | None, result: int | None, *shape: int) -> LoopReads:
    """Return a kernel's work: each window of ``x``, then one of ``once`` and of ``result``."""
    planes, height, width, rows, columns, down, across, stride, top, left = shape
    plane, row, column, down_index, across_index = _indices(planes, rows, columns, down, across)
    row, column = row * stride - top + down_index, column * stride - left + across_index
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    at = ((plane * height + row) * width + column)[inside]
    window = (np.arange(len(inside)) // (down * across))[inside]
    lines = int(np.count_nonzero(inside & ((across_index == 0) | (column == 0))))
    last = np.append(np.diff(window) != 0, True)
    places = np.stack([x + 4 * at, np.full(len(at), -1), np.full(len(at), -1)], axis=1)
    for place, begin, element in ((1, once, at), (2, result, window)):
        if begin is not None:
            places[last, place] = begin + 4 * element[last]
    places = places.reshape(-1)
    return [planes * rows * columns, lines, len(at)], places[places >= 0]


def _cleared(count: int, work: LoopReads) -> LoopReads:
    return [count, *work[0]], work[1]


def _softmax(x: int, _: int, __: int, dx: int, samples: int, classes: int, *rest: Any) -> LoopReads:
    sample, part, label = _indices(samples, 3, classes)
    at = sample * rest[0] + label * rest[1]
    return [samples, samples * classes], _read((0, at)) + np.where(part == 2, dx, x)


KERNELS: dict[str, tuple[Callable[..., LoopReads], Sequence[float]]] = {
    "relu": (lambda x, y, n: _elements(x, count=n), [369.8, 16.6]),
    "relu_gradient": (_relu_gradient, [390.7, 16.7]),
    "fill": (lambda x, n, bits: _elements(count=n), [366.5, 5.0]),
    "copy": (_copy, [517.4, 8.7, 11.7, 43.7, 15.9]),
    "bias": (_bias, [420.3, 19.2, 19.8]),
    "bias_gradient": (
        lambda dy, db, *n: (_channels(*n), _by_channel([dy], *n)),
        [611.4, 31.6, 12.8, 15.2],
    ),
    "moments": (_moments, [695.1, 180.0, 34.2, 45.5]),
    "normalise": (_normalise, [457.6, 36.0, 43.8]),
    "normalise_gradient": (_normalise_gradient, [632.8, 162.0, 68.9, 111.9]),
    "max_pool": (lambda x, y, *s: _windows(x, None, None, *s), [1029.3, 140.7, 15.1, 40.0]),
    "max_pool_gradient": (
        lambda x, dy, dx, *s: _cleared(s[0] * s[1] * s[2], _windows(x, dx, dy, *s)),
        [751.9, 5.5, 169.9, 0.0, 43.2],
    ),
    "average_pool": (lambda x, y, *s: _windows(x, None, None, *s), [730.5, 125.1, 17.0, 19.6]),
    "average_pool_gradient": (
        lambda dy, dx, *s: _cleared(s[0] * s[1] * s[2], _windows(dx, None, dy, *s)),
        [746.4, 5.5, 122.5, 13.9, 29.2],
    ),
    "softmax_cross_entropy": (_softmax, [938.5, 311.2, 319.7]),
    "dropout": (lambda x, y, n, *_: _elements(x, count=n), [672.3, 78.7]),
    "sgd": (lambda p, g, n, *_: _elements(g, p, count=n), [410.8, 38.6]),
    "adam": (lambda p, g, m, v, n, *_: _elements(g, p, m, v, count=n), [499.5, 196.3]),
}
"""Models of the kernels: a function from arguments to the work, and cycles.

The first number is the cycles of the kernel itself; the others are the cycles of a pass of each
loop. They are calibrated on RTL with 28 random shapes a kernel, which
``hw_tests/speed/kernel_cycles.py`` makes, and normal random numbers.
"""


def kernel_work(kernel: str, arguments: Sequence[Any]) -> list[int]:
    """Return 1 (for the kernel itself), the passes of its loops, and its waits for the memory."""
    check_name("the kernel", kernel, KERNELS)
    passes, places = KERNELS[kernel][0](*arguments)
    # Sorted by set of the cache; within a set, the order of the reads is kept.
    lines = places // _LINE_BYTES
    lines = lines[np.argsort(lines % _LINES, kind="stable")]
    misses = int(np.count_nonzero(np.diff(lines))) + min(1, len(lines))
    return [1, *map(int, passes), _WAITS + misses]


@cache
def kernel_cycles(
    kernel: str, arguments: tuple[Any, ...], *, read_cycles: float, clock_ratio: int = 1
) -> float:
    """Return the pool cycles from a core's start of a kernel to its end.

    ``arguments`` are those of the firmware's kernel, tensors as offsets in bytes. ``read_cycles``
    is the memory's latency for a core's read, in pool cycles. ``clock_ratio`` is the core's clock
    frequency divided by the pool's. A kernel without a model raises ``ValueError``; kernels that
    use the pool have none.
    """
    check_number("read_cycles", read_cycles, 1, 10_000)
    if clock_ratio not in (1, 2, 4):
        raise ValueError(f"clock_ratio is {clock_ratio!r}: expected 1, 2 or 4")
    *passes, waits = kernel_work(kernel, arguments)
    costs = KERNELS[kernel][1]
    loops = _RING_CYCLES + sum(cost * count for cost, count in zip(costs, passes, strict=True))
    if clock_ratio > 1:
        # Predicted: the answer passes a register, and the request waits for the pool's clock.
        read_cycles += 1.5 + 0.5 / clock_ratio
    return (loops + waits * _LINE_CYCLES) / clock_ratio + waits * read_cycles
