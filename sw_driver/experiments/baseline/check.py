"""Compares the CPU's kernel with the golden model, every bit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from golden.rules import reference

from .library import CpuLibrary, aligned_floats

__all__ = ["differing", "special_operands"]

_SPECIAL = [
    0x00000000, 0x80000000,  # zeros
    0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF,  # subnormal numbers
    0x00800000, 0x80800000, 0x1F800000, 0x20000000,  # the smallest normal ones; small squares
    0x3F800000, 0xBF800000, 0x3F7FFFFF, 0x40490FDB,
    0x5F7FFFFF, 0x7F7FFFFF, 0xFF7FFFFF,  # large squares, the largest numbers
    0x7F800000, 0xFF800000,  # infinities
    0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFBFFFFF,  # quiet and signalling NaNs
]  # fmt: skip

Operands = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]


def special_operands(*, seed: int, random_count: int) -> Operands:
    """p, g, m and v: pairs of special values, each in all places; any bits; ordinary values."""
    rng = np.random.default_rng(seed)
    special = np.array(_SPECIAL, np.uint32)
    pairs = np.array(list(itertools.product(special, repeat=2)), np.uint32).T
    columns = [
        np.concatenate(
            [
                *(pairs[(place >> bit) & 1] for bit in range(2)),
                rng.integers(0, 1 << 32, random_count, np.uint32),
                rng.normal(0, 1e-2, random_count).astype(np.float32).view(np.uint32),
            ]
        )
        for place in range(4)
    ]
    p, g, m, v = (column.view(np.float32) for column in columns)
    np.square(v[-random_count:], out=v[-random_count:])
    return p, g, m, v


def differing(
    library: CpuLibrary,
    operands: Operands,
    constants: Mapping[str, np.float32],
    *,
    threads: int,
    streaming: bool,
) -> int:
    """Values of p, m and v together in which the kernel's result is not the golden model's."""
    p, g, m, v = (aligned_floats(array.size) for array in operands)
    for copy, array in zip((p, g, m, v), operands, strict=True):
        copy[:] = array
    library.adam(p, g, m, v, constants, threads=threads, streaming=streaming)
    expected = reference("adam").step(dict(zip("pgmv", operands, strict=True)), constants)
    wrong = [
        np.count_nonzero(result.view(np.uint32) != expected[name].view(np.uint32))
        for name, result in {"p": p, "m": m, "v": v}.items()
    ]
    unread = np.count_nonzero(g.view(np.uint32) != operands[1].view(np.uint32))
    return int(sum(wrong) + unread)
