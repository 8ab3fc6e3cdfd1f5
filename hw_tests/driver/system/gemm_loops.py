"""A product on an output-stationary array, loop by loop: what it computes, moves and takes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as pairs
from math import ceil

import numpy as np
from numpy.typing import NDArray


@dataclass
class Done:
    result: NDArray[np.int64]
    moved_words: int
    cycles: int
    """Of arithmetic, of the PE with most to do, all waves after each other."""
    ns: float


def run(
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    *,
    grid: tuple[int, int],
    tile: tuple[int, int],
    piece: int,
    macs: int,
    mhz: float,
    words_per_ns: float,
    buffer_words: int,
) -> Done:
    """Wave by wave, and in each piece by piece of the depth.

    Memory does one thing at a time: it brings the next piece while the PEs compute on one, as soon
    as a half of their buffers is free, and takes a wave's outputs when they are complete.
    """
    (rows, depth), columns = left.shape, right.shape[1]
    result = np.zeros((rows, columns), np.int64)
    moved = cycles = 0
    port_ns = 0.0
    computed_ns = [0.0, 0.0]  # when the two last pieces were done
    waiting_words = 0  # outputs that memory has not taken yet
    high, wide = grid[0] * tile[0], grid[1] * tile[1]
    assert tile[0] * tile[1] + (tile[0] + tile[1]) * piece <= buffer_words
    for along, down in pairs(range(0, columns, wide), range(0, rows, high)):
        of_wave = result[down : down + high, along : along + wide]
        for first, start in enumerate(range(0, depth, piece)):
            a = left[down : down + high, start : start + piece]
            b = right[start : start + piece, along : along + wide]
            port_ns = max(port_ns, computed_ns[-2]) + (a.size + b.size) / words_per_ns
            moved += a.size + b.size
            here_ns = port_ns
            if not first and waiting_words:  # the wave before, behind this one's first piece
                port_ns = max(port_ns, computed_ns[-1]) + waiting_words / words_per_ns
                moved += waiting_words
            longest = 0
            for line, file in pairs(range(grid[0]), range(grid[1])):
                mine = slice(line * tile[0], (line + 1) * tile[0])
                yours = slice(file * tile[1], (file + 1) * tile[1])
                outputs = a[mine] @ b[:, yours]
                of_wave[mine, yours] += outputs
                longest = max(longest, ceil(outputs.size * a.shape[1] / macs))
            cycles += longest
            done_ns = max(here_ns, computed_ns[-1]) + 1000 * longest / mhz
            computed_ns = [computed_ns[-1], done_ns]
        waiting_words = of_wave.size
    moved += waiting_words
    end_ns = max(port_ns, computed_ns[-1]) + waiting_words / words_per_ns
    return Done(result, moved, cycles, end_ns)
