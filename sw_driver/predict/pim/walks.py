"""Walks over elements, as beats of memory in runs that a vault serves at once."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw.pim.work.layouts import BEAT_WORDS

__all__ = ["MOST_RUN", "NO_LINE", "STRETCH_WORDS", "Image", "Pattern", "Run", "Walk", "pattern_of"]

NO_LINE = 1 << 24
"""Length of a line that never ends, in vectors."""

STRETCH_WORDS = 128
"""Elements of 512 bytes, which are a row in each of two layers of a vault."""

_STRETCH_BEATS = STRETCH_WORDS // BEAT_WORDS
MOST_RUN = 16
"""Beats that a vault takes from one source before it turns to others, at most."""


class Image(NamedTuple):
    """Place of a walk's first element in an image with padding."""

    y: int
    x: int
    vector_x: int
    """Distance to the next vector in x, and to the next line in y."""
    dilation: int
    height: int
    width: int


class Walk(NamedTuple):
    """``length`` elements of each of ``vectors`` vectors.

    Elements are taps of ``tap_rows`` rows of ``tap_columns``, from ``tap`` on, then those of the
    next channel. With ``across``, neighbouring vectors are taken together, in groups of
    ``group_size``. A line ends after the first ``line_left`` vectors, and then after every
    ``line``. The next line begins ``line_step`` elements after the beginning of the one that ends.
    """

    vectors: int
    vector: int
    length: int
    column: int
    group_size: int = 1
    across: bool = False
    row: int = 0
    channel: int = 0
    tap_rows: int = 1
    tap_columns: int = 1 << 24
    tap: int = 0
    image: Image | None = None
    line: int = NO_LINE
    line_left: int = NO_LINE
    line_step: int = 0

    @property
    def lines(self) -> int:
        """Number of lines with a vector."""
        return 1 - (self.line_left - self.vectors) // self.line


class Run(NamedTuple):
    """Consecutive beats in one stretch of 512 bytes."""

    stretch: int
    """Number of the stretch, counted from that of the walk's address."""
    layers: tuple[int, ...]
    """Layer of each beat, of the stretch's two: 0 or 1."""


class Pattern(NamedTuple):
    """Requests of a walk, relative to the stretch of its address."""

    runs: tuple[Run, ...]
    gaps: tuple[int, ...]
    """Segments of zeros before each run and after the last; each takes a cycle."""
    rows: int
    """Rows of the walk; the walker works on two at once, and the next walk may follow them."""
    rest: int
    """Segments before the last part of the last row but one.

    A part is all zeros or all data.
    """
    last_part: int
    """Segments before the last part of the last row."""


def pattern_of(walk: Walk, address: int) -> tuple[Pattern, int]:
    """Return the pattern of a walk that begins at element ``address``, and its stretch."""
    image = walk.image
    if image is not None:
        walk = walk._replace(image=_seen(walk, image))
    return _pattern(walk, address % STRETCH_WORDS), address // STRETCH_WORDS


def _seen(walk: Walk, image: Image) -> Image:
    """Return the image, moved so that walks of the same pattern have equal images.

    Coordinates matter only at borders.
    """
    taps = walk.tap_rows * walk.tap_columns
    rows = walk.tap_rows if walk.tap + walk.length > walk.tap_columns else 1
    lines = walk.lines
    row = walk.tap % taps // walk.tap_columns
    top = image.y - row * image.dilation if rows > 1 else image.y
    y, height = image.y, image.height
    down = (lines - 1) * image.vector_x
    if top >= 0 and top + down + (walk.tap_rows - 1) * image.dilation < height:
        y, height = row * image.dilation, 1 << 30
    x, width = image.x, image.width
    left = x - walk.tap % walk.tap_columns * image.dilation
    last = walk.vectors - 1
    if lines > 1:
        left -= (walk.line - walk.line_left) * image.vector_x
        last = walk.line - 1
    right = left + last * image.vector_x + (walk.tap_columns - 1) * image.dilation
    if left >= 0 and right < width:
        x, width = x - left, 1 << 30
    return image._replace(y=y, x=x, height=height, width=width)


@lru_cache(maxsize=1 << 14)
def _pattern(walk: Walk, address: int) -> Pattern:
    address_of, row_begins, zero, step = _elements(walk, address)
    size = address_of.size
    places = np.arange(size)
    part = row_begins.copy()
    part[1:] |= zero[1:] != zero[:-1]
    if step not in (-1, 0, 1):
        segment = np.ones(size, bool)
    else:
        since = places - np.maximum.accumulate(np.where(part, places, 0))
        segment = part | (since % BEAT_WORDS == 0)
        if step:
            beat = address_of // BEAT_WORDS
            other = part.copy()
            other[1:] |= beat[1:] != beat[:-1]
            segment = np.where(zero, segment, other)
    starts = np.flatnonzero(segment)
    zeros = zero[starts]
    beats = address_of[starts] // BEAT_WORDS
    rows, parts = np.cumsum(row_begins)[starts], np.cumsum(part)[starts]
    last_row = np.searchsorted(rows, rows[-1])
    runs, gaps = _runs(beats, zeros)
    return Pattern(
        runs=tuple(runs),
        gaps=tuple(gaps),
        rows=int(rows[-1]) - int(rows[0]) + 1,
        rest=int(np.searchsorted(parts, parts[last_row] - 1)),
        last_part=int(np.searchsorted(parts, parts[-1])),
    )


def _runs(beats: NDArray[np.int64], zeros: NDArray[np.bool_]) -> tuple[list[Run], list[int]]:
    """Return the runs of a walk, and the segments of zeros before each and after the last."""
    places = np.flatnonzero(~zeros)
    gaps = np.diff(places, prepend=-1, append=zeros.size) - 1
    requested = beats[places]
    stretches = requested // _STRETCH_BEATS
    layers = (requested % 2).tolist()
    begins = [0, *(np.flatnonzero(np.diff(stretches) | gaps[1:-1]) + 1).tolist(), places.size]
    runs = []
    gaps_before = []
    for begin, end in itertools.pairwise(begins):
        for first in range(begin, end, MOST_RUN):
            last = min(first + MOST_RUN, end)
            runs.append(Run(int(stretches[begin]), tuple(layers[first:last])))
            gaps_before.append(int(gaps[first]))
    return runs, [*gaps_before, int(gaps[-1])]


def _elements(
    walk: Walk, address: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_], int]:
    """Return, in the walk's order: addresses, row beginnings, zeros; and the step.

    Row beginnings and zeros are booleans for each element. The step is that from element to
    element.
    """
    taps = walk.tap_rows * walk.tap_columns
    tap = walk.tap + np.arange(walk.length)
    v, u, c = tap % walk.tap_columns, tap // walk.tap_columns % walk.tap_rows, tap // taps
    offset = v * walk.column + u * walk.row + c * walk.channel
    offset = offset - offset[0]
    row_begins = v == 0
    if walk.image is None and walk.row == walk.tap_columns * walk.column:
        row_begins = row_begins & (u == 0)
        if walk.channel == taps * walk.column:
            row_begins = np.zeros_like(row_begins)
    row_begins[0] = True
    vector = np.arange(walk.vectors)
    line, in_line = np.divmod(vector + walk.line - walk.line_left, walk.line)
    in_line -= in_line[0]
    zero = np.zeros((walk.vectors, walk.length), bool)
    single = False
    image = walk.image
    if image is not None:
        y = image.y + (u - u[0]) * image.dilation + line[:, None] * image.vector_x
        x = image.x + (v - v[0]) * image.dilation + in_line[:, None] * image.vector_x
        zero |= (y < 0) | (y >= image.height) | (x < 0) | (x >= image.width)
        single = (image.vector_x if walk.across else image.dilation) != 1
    at = address + line[:, None] * walk.line_step + in_line[:, None] * walk.vector + offset
    if not walk.across:
        begins = np.broadcast_to(row_begins | single, at.shape)
        return at.ravel(), begins.ravel(), zero.ravel(), walk.column
    member = vector % walk.group_size
    ends = np.diff(line, prepend=0) != 0
    begins = np.broadcast_to((member % 8 == 0) | ends | single, at.T.shape)
    return at.T.ravel(), begins.ravel(), zero.T.ravel(), walk.vector
