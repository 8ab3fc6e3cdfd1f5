"""Cycles of a core's kernels.

What the firmware has follows from the model of its cycles, a longer one from how that goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from sw_driver.predict.pim.core import kernel_cycles

__all__ = ["cycles_of"]

_READ_CYCLES = 40
"""Of the stack's memory, for a core's read: that of the model's calibration."""
_LINE_ELEMENTS, _MISS_CYCLES = 8, 15 + _READ_CYCLES
_LONG = 6000
"""Elements up to which the model is asked, and from half of which on a longer kernel goes on."""
_PLACES = [(place << 20) + 832 * place for place in range(1, 9)]
"""Tensors that do not push each other out of the cache."""
_A, _B, _C, _D, *_REST = _PLACES

_MEASURED = {"add_up": (16, 0), "elements": (20, 2), "exponential": (251, 1)}
"""Cycles of an element, and tensors of which it reads one: what the firmware lacks. On RTL, with
kernels in C beside the firmware's, a multiplication with its addition takes 15.3 cycles, four sums
at a time (19.2 one by one), with some 0.9 for lines that a blocked product misses; a sum of two
tensors takes 20.0; an exponential 210, and with it an addition and a division."""

_SAMPLES: dict[str, Callable[[int, int], tuple[Any, ...]]] = {
    "relu": lambda n, _: (_A, _B, n),
    "relu_gradient": lambda n, _: (_A, _B, _C, n),
    "fill": lambda n, _: (_A, n, 0),
    "copy": lambda n, _: (_A, _B, 1, 1, 1, n, 0, 0, 0, 1, 0, 0, 0, 1),
    "dropout": lambda n, _: (_A, _B, n, 1, 1, 0, 1 << 31, 2.0),
    "bias_gradient": lambda n, _: (_A, _B, 1, 1, n),
    "moments": lambda n, _: (_A, _B, _C, 1e-5, 1, 1, n),
    "normalise": lambda n, _: (_A, _B, _C, _D, *_REST[:2], 1, 1, n),
    "normalise_gradient": lambda n, _: (*_PLACES, 1, 1, n),
    "softmax_cross_entropy": lambda n, _: (_A, _B, _C, _D, 1, n, n, 1, 1.0),
    "sgd": lambda n, _: (_A, _B, n, 0.0, 0.1),
    "adam": lambda n, _: (_A, _B, _C, _D, n, *[0.1] * 9),
    "max_pool": lambda n, w: (_A, _B, *_windows(n, w)),
    "max_pool_gradient": lambda n, w: (_A, _B, _C, *_windows(n, w)),
    "average_pool": lambda n, w: (_A, _B, *_windows(n, w)),
    "average_pool_gradient": lambda n, w: (_A, _B, *_windows(n, w)),
}
"""Arguments of a kernel for so many elements, of windows of that height and width."""


def _windows(elements: int, size: int) -> tuple[int, ...]:
    """Of one row of windows, side by side."""
    columns = max(1, elements // (size * size))
    return 1, size, columns * size, 1, columns, size, size, size, 0, 0


@lru_cache(maxsize=1 << 12)
def cycles_of(kernel: str, elements: int, window: int = 1) -> float:
    """Cycles of a kernel of the firmware, or of another one, that goes over so many elements."""
    if kernel in _MEASURED:
        each, read = _MEASURED[kernel]
        return elements * (each + read / _LINE_ELEMENTS * _MISS_CYCLES)
    if elements > _LONG:
        half, long = (cycles_of(kernel, each, window) for each in (_LONG // 2, _LONG))
        return long + (elements - _LONG) * (long - half) / (_LONG // 2)
    return kernel_cycles(kernel, _SAMPLES[kernel](elements, window), read_cycles=_READ_CYCLES)
