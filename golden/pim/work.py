"""Operations and bytes of a work."""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .descriptor import ELEMENT_BYTES, Descriptor, Opcode

__all__ = ["Account", "account"]


class Account(NamedTuple):
    """Operations and least memory traffic of a work."""

    multiplications: int
    additions: int
    bytes_read: int
    """Bytes of operands; each byte counts once, however often it is used."""
    bytes_written: int


def account(work: Descriptor) -> Account:
    """Return the account of a work that has passed :func:`golden.pim.descriptor.check`."""
    results = prod(work.extents("result"))
    match Opcode(work.opcode):
        case Opcode.ADD:
            operations = 0, results
        case Opcode.MUL:
            operations = results, 0
        case Opcode.SCALEADD:
            operations = results, results
        case Opcode.SUM:
            operations = 0, results * (work.length - 1)
        case Opcode.DOT | Opcode.MATVEC | Opcode.MATMUL:
            operations = results * work.length, results * (work.length - 1)
        case Opcode.CONV2D:
            products = work.channels * work.filter_height * work.filter_width
            operations = results * products, results * (products - 1)
    return Account(
        *operations,
        bytes_read=ELEMENT_BYTES * sum(_elements_read(work, name) for name in work.operands),
        bytes_written=ELEMENT_BYTES * results,
    )


def _elements_read(work: Descriptor, name: str) -> int:
    """Count the distinct elements of an operand that the work uses."""
    indices = [np.arange(extent) for extent in work.extents(name)]
    if work.opcode == Opcode.CONV2D and name == "a":
        indices[2] = _met(work, work.rows, work.filter_height, work.pad_top, work.height)
        indices[3] = _met(work, work.columns, work.filter_width, work.pad_left, work.width)
    strides = getattr(work, name).strides
    offsets = [np.unique(index * stride) for index, stride in zip(indices, strides, strict=False)]
    if not all(len(places) for places in offsets):
        return 0
    steps = [places for places in offsets if len(places) > 1]
    steps.sort(key=lambda places: np.diff(places).min())
    reach = 0
    for places in steps:
        if np.diff(places).min() <= reach:  # some elements have several sets of indices
            return len(reduce(lambda x, y: np.unique(np.add.outer(x, y)), steps))
        reach += places[-1] - places[0]
    return prod(map(len, offsets))


def _met(work: Descriptor, outputs: int, taps: int, pad: int, size: int) -> NDArray[np.int64]:
    """Return the rows or columns of the input that are in at least one window."""
    met = work.stride * np.arange(outputs) + work.dilation * np.arange(taps)[:, None] - pad
    return np.unique(met[(met >= 0) & (met < size)])
