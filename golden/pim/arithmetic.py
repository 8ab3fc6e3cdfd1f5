"""Results of a work, bit for bit, in the order that the specification states.

All is FP32. Every operation is rounded to nearest even on its own, subnormal numbers are kept, and
every NaN in a result is 0x7FC00000. Independent elements are vectorised, so that a layer takes
about a second.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from golden.rules import canonical

from .descriptor import ELEMENT_BYTES, Descriptor, Opcode, StridedTensor

__all__ = ["compute", "place", "tree"]

_CHUNK = 1 << 20
"""Products in flight at once; few enough for the processor's caches."""

Floats = NDArray[np.float32]


def tree(values: Floats) -> Floats:
    """Return the sum over the first index by a balanced binary tree.

    Neighbours are added first; an odd one out goes unchanged to the next level.
    """
    while len(values) > 1:
        sums = values[:-1:2] + values[1::2]
        values = np.concatenate([sums, values[-1:]]) if len(values) % 2 else sums
    return values[0]


def compute(work: Descriptor, memory: NDArray[np.uint8]) -> Floats:
    """Return the result of ``work`` in the shape of its indices, with operands from ``memory``.

    The work must have passed :func:`golden.pim.descriptor.check`; memory is not changed.
    """
    operands = {name: _view(memory, work, name) for name in work.operands}
    with np.errstate(all="ignore"):
        match Opcode(work.opcode):
            case Opcode.ADD:
                result = operands["a"] + operands["b"]
            case Opcode.MUL:
                result = operands["a"] * operands["b"]
            case Opcode.SCALEADD:
                alpha = np.array(work.alpha_bits, np.uint32).view(np.float32)
                result = alpha * operands["a"] + operands["b"]
            case Opcode.SUM:
                result = tree(np.moveaxis(operands["a"], -1, 0))
            case Opcode.DOT | Opcode.MATVEC:
                result = tree(np.moveaxis(operands["a"] * operands["b"], -1, 0))
            case Opcode.MATMUL:
                result = _matrix(operands["a"], operands["b"])
            case Opcode.CONV2D:
                result = _convolution(work, **operands)
    return canonical(np.array(result, np.float32))


def place(work: Descriptor, memory: NDArray[np.uint8], result: Floats) -> None:
    """Write ``result`` to the place of the result of ``work``."""
    _view(memory, work, "result")[...] = result


def _view(memory: NDArray[np.uint8], work: Descriptor, name: str) -> Floats:
    """Return a tensor of ``work`` as a view of ``memory``."""
    tensor: StridedTensor = getattr(work, name)
    extents = work.extents(name)
    strides = [ELEMENT_BYTES * stride for stride in tensor.strides[: len(extents)]]
    origin = memory.view(np.float32)[tensor.address_bytes // ELEMENT_BYTES :]
    return as_strided(origin, extents, strides)


def _matrix(a: Floats, b: Floats) -> Floats:
    rows, (length, columns) = len(a), b.shape
    result = np.empty((rows, columns), np.float32)
    across = max(1, min(columns, _CHUNK // length))
    down = max(1, _CHUNK // (length * across))
    for left in range(0, columns, across):
        right = b[:, None, left : left + across]
        for top in range(0, rows, down):
            products = a[top : top + down].T[:, :, None] * right
            result[top : top + down, left : left + across] = tree(products)
    return result


def _convolution(work: Descriptor, a: Floats, b: Floats) -> Floats:
    pixels, taps = work.rows * work.columns, work.filter_height * work.filter_width
    result = np.empty((work.images, work.filters, pixels), np.float32)
    filters = b.reshape(work.filters, work.channels, taps)
    together = max(1, _CHUNK // (pixels * taps))
    for image in range(work.images):
        for channel in range(work.channels):
            windows = _windows(work, a[image, channel]).reshape(taps, 1, pixels)
            for first in range(0, work.filters, together):
                some = slice(first, first + together)
                sums = tree(filters[some, channel].T[:, :, None] * windows)
                result[image, some] = result[image, some] + sums if channel else sums
    return result.reshape(work.images, work.filters, work.rows, work.columns)


def _windows(work: Descriptor, plane: Floats) -> Floats:
    """Return the filter's inputs, by row and column of the filter, then of the result."""

    def inputs(outputs: int, taps: int, pad: int) -> NDArray[np.int64]:
        return work.stride * np.arange(outputs) + work.dilation * np.arange(taps)[:, None] - pad

    y = inputs(work.rows, work.filter_height, work.pad_top)[:, None, :, None]
    x = inputs(work.columns, work.filter_width, work.pad_left)[None, :, None, :]
    inside = (y >= 0) & (y < work.height) & (x >= 0) & (x < work.width)
    values = plane[y.clip(0, work.height - 1), x.clip(0, work.width - 1)]
    return np.where(inside, values, np.float32(0))
