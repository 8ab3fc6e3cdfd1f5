"""Time of a matrix product on a processor with many units that each compute a tile.

A kernel cuts the result into tiles, and a unit (a streaming multiprocessor) computes one at a time.
A wave is as many tiles as there are units; a wave that is not full takes as long as a full one.
Long sums may be split over several units, as cuBLAS does if tiles are few.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

from ..workload.trace import Op

__all__ = ["START_UP_DEPTH", "TILES", "is_attention", "product_ns", "tiled_shape"]

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Rows and columns of the tiles that a kernel may have; the fastest is taken."""

START_UP_DEPTH = 192
"""Terms of a sum that take as long as a tile's begin and end, assumed."""

_SPLITS = (1, 2, 4, 8, 16)


def is_attention(op: Op) -> bool:
    """Return whether the operation is a fused attention."""
    return "scaled_dot_product" in op.kind


def tiled_shape(op: Op) -> tuple[int, int, int, int]:
    """Return a product as (number of products, rows, columns, terms of a sum).

    A convolution is the product of all its places with its weights. The operation has a geometry.
    """
    geometry = op.geometry
    assert geometry is not None
    result = geometry.result
    if "convolution" in op.kind and len(result) > 2:
        if op.kind.endswith("filter"):
            many, rows, columns = geometry.groups, result[0] // geometry.groups, prod(result[1:])
        else:
            many, rows = geometry.groups, result[0] * prod(result[2:])
            columns = result[1] // geometry.groups
    else:
        *outer, rows, columns = (1, 1, *result)
        many = prod(outer)
    many, rows, columns = (max(size, 1) for size in (many, rows, columns))
    return many, rows, columns, -(-op.flops // (2 * many * rows * columns))


def product_ns(op: Op, tflop_per_s: float, units: int) -> float:
    """Return the time of a product of matrices in ns, without a bound of the memory.

    ``tflop_per_s`` is the rate of all ``units`` together, in 10^12 FLOP/s.
    """
    return _least_flops(*tiled_shape(op), units) / (tflop_per_s * 1000)


@lru_cache(maxsize=4096)
def _least_flops(many: int, rows: int, columns: int, depth: int, units: int) -> int:
    return min(_tiled_flops(many, rows, columns, depth, units))


def _tiled_flops(many: int, rows: int, columns: int, depth: int, units: int) -> Iterator[int]:
    """Yield, by tile and split, the operations that fit into the time of a product."""
    for high, wide in TILES:
        tiles = many * -(-rows // high) * -(-columns // wide)
        for split in _SPLITS:
            waves = -(-tiles * split // units)
            yield waves * units * 2 * high * wide * (-(-depth // split) + START_UP_DEPTH)
