"""How far the kernels' ``exp`` and ``log`` are from the exact values, in units in the last place:

    .venv/bin/python -m hw_tests.golden.exp_log_error [STEP]

looks at every STEP-th FP32 number (by default at all, which takes some minutes).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from golden.pim import kernels

__all__ = ["worst"]

_RANGES = {
    "exp": [(0x00000000, 0x42B20000), (0x80000000, 0xC2D00001)],
    "log": [(0x00000001, 0x7F800000)],
}
"""The bits between which the functions are neither the same everywhere nor NaN."""
_CHUNK = 1 << 20


def worst(name: str, step: int) -> float:
    """The largest error of ``exp`` or ``log`` over every ``step``-th number; units in the last
    place of a result near zero are those of the least subnormal number."""
    ours: Callable[..., Any] = getattr(kernels, name)
    exact: Callable[..., Any] = getattr(np, name)
    most = 0.0
    for first, end in _RANGES[name]:
        for start in range(first, end, _CHUNK * step):
            bits = np.arange(start, min(end, start + _CHUNK * step), step, np.uint32)
            x = bits.view(np.float32)
            with np.errstate(all="ignore"):
                right = exact(x.astype(np.float64))
                nearest = np.abs(right).astype(np.float32)
                apart = np.abs(ours(x).astype(np.float64) - right)
            fits = np.isfinite(nearest)
            unit = np.spacing(nearest[fits]).astype(np.float64)
            most = max(most, float((apart[fits] / unit).max(initial=0)))
    return most


if __name__ == "__main__":
    STEP = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for NAME in _RANGES:
        print(f"{NAME}: {worst(NAME, STEP):.4f} units in the last place")
