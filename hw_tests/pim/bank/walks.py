"""Walks for benches: what they go over, element by element, and random ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

from hw.pim.work.layouts import Jobs
from hw_tests.streams import pack

__all__ = ["NEVER", "Element", "Segment", "Walk", "elements_of", "random_walk", "segments_of"]

BEAT_WORDS = 8
NEVER = (1 << 24) - 1
NO_LINE = 255


@dataclass(frozen=True, kw_only=True)
class Walk:
    """The fields of a walk, strides as signed numbers; see ``Jobs.walk``."""

    address: int
    vectors: int = 1
    group_size: int = 1
    vector: int = 0
    length: int = 1
    across: int = 0
    column: int = 0
    row_wrap: int = 0
    channel_wrap: int = 0
    tap_column: int = 0
    tap_row: int = 0
    columns: int = NEVER
    rows: int = 1
    bounded: int = 0
    y: int = 0
    x: int = 0
    vector_x: int = 1
    line: int = NO_LINE
    line_left: int = NO_LINE
    line_wrap: int = 0
    line_x: int = 0
    dilation: int = 1
    height: int = 1
    width: int = 1

    def packed(self, jobs: Jobs) -> int:
        """The payload."""
        layout = jobs.walk
        values = {
            name: value & ((1 << layout[name].width) - 1) for name, value in asdict(self).items()
        }
        return pack(layout, **values)

    def line_and_place(self, vector: int) -> tuple[int, int]:
        """The number of a vector's line, and its place there."""
        if vector < self.line_left:
            return 0, vector
        line, place = divmod(vector - self.line_left, self.line)
        return line + 1, place


@dataclass(frozen=True)
class Element:
    vector: int
    k: int
    address: int
    zero: bool
    run: tuple[int, ...]
    """Elements of different runs are never in one segment."""


@dataclass(frozen=True)
class Segment:
    """As the walker makes them; the address of zeros is 0 here."""

    address: int
    step: int
    count: int
    zero: int
    across: int
    group: int
    member: int
    k: int
    last: int


def _vector(walk: Walk, vector: int) -> Iterator[Element]:
    """The elements of one vector, in order."""
    line, place = walk.line_and_place(vector)
    address = walk.address + (vector - line) * walk.vector + line * walk.line_wrap
    vector_y = walk.y + walk.vector_x * line
    vector_x = (walk.line_x if line else walk.x) + walk.vector_x * place
    tap_row, tap_column, channel = walk.tap_row, walk.tap_column, 0
    # What ends a run along the vector: the end of a row, unless the next follows it in memory.
    rows_join = not walk.bounded and walk.row_wrap == walk.column
    channels_join = rows_join and walk.channel_wrap == walk.column
    for k in range(walk.length):
        y = vector_y + walk.dilation * (tap_row - walk.tap_row)
        x = vector_x + walk.dilation * (tap_column - walk.tap_column)
        zero = bool(walk.bounded) and not (0 <= y < walk.height and 0 <= x < walk.width)
        run = () if channels_join else (channel,) if rows_join else (channel, tap_row)
        yield Element(vector, k, address, zero, run)
        tap_column += 1
        if tap_column < walk.columns:
            address += walk.column
            continue
        tap_column = 0
        tap_row += 1
        if tap_row < walk.rows:
            address += walk.row_wrap
            continue
        tap_row = 0
        channel += 1
        address += walk.channel_wrap


def elements_of(walk: Walk) -> Iterator[Element]:
    """All elements, in order."""
    vectors = [list(_vector(walk, vector)) for vector in range(walk.vectors)]
    if not walk.across:
        for each in vectors:
            yield from each
        return
    for k in range(walk.length):
        yield from (each[k] for each in vectors)


def segments_of(walk: Walk, words: int) -> list[Segment]:
    """The segments of a walk in a memory of ``words`` addresses, from each element's own place."""
    stride = walk.vector if walk.across else walk.column
    unit = not walk.bounded or (walk.vector_x if walk.across else walk.dilation) == 1
    joined: list[list[Element]] = []
    for element in elements_of(walk):
        if joined:
            segment = joined[-1]
            first, last = segment[0], segment[-1]
            same_run = (
                element.k == last.k
                and element.vector // walk.group_size == last.vector // walk.group_size
                and element.vector % walk.group_size // 8 == last.vector % walk.group_size // 8
                and walk.line_and_place(element.vector)[0] == walk.line_and_place(last.vector)[0]
                if walk.across
                else element.vector == last.vector and element.run == last.run
            )
            same_beat = element.address // BEAT_WORDS == first.address // BEAT_WORDS
            if (
                same_run
                and unit
                and -1 <= stride <= 1
                and element.zero == last.zero
                and (element.zero or same_beat)
                and len(segment) < 8
            ):
                assert element.address == last.address + stride
                segment.append(element)
                continue
        joined.append([element])
    return [
        Segment(
            address=0 if segment[0].zero else segment[0].address % words,
            step=stride if -1 <= stride <= 1 else 0,
            count=len(segment),
            zero=int(segment[0].zero),
            across=walk.across,
            group=segment[0].vector // walk.group_size,
            member=segment[0].vector % walk.group_size,
            k=segment[0].k,
            last=int(number == len(joined) - 1),
        )
        for number, segment in enumerate(joined)
    ]


def _stride(rng: random.Random, words: int) -> int:
    return rng.choice(
        (
            0,
            1,
            1,
            1,
            -1,
            -1,
            2,
            -2,
            8,
            -8,
            7,
            rng.randrange(-40, 40),
            rng.randrange(words) - words // 2,
        )
    )


def random_walk(rng: random.Random, words: int, longest: int) -> Walk:
    """Any walk, of some hundred elements at most."""
    group_size = rng.randint(1, 16)
    vectors = rng.choice((1, group_size, min(2 * group_size, 128), rng.randint(1, 8 * group_size)))
    length = rng.randint(1, min(longest, rng.choice((1, 9, 60, longest))))
    length = max(1, min(length, 300 // vectors))
    columns = rng.choice((1, 2, 3, 5, 11, rng.randint(1, length), NEVER, rng.randint(1, NEVER)))
    rows = rng.choice((1, 2, 3, rng.randint(1, 12), 65535))
    column = _stride(rng, words)
    row_wrap = column if rng.random() < 0.4 else _stride(rng, words)
    channel_wrap = row_wrap if rng.random() < 0.4 else _stride(rng, words)
    tap_column = rng.choice((0, rng.randrange(columns), columns - 1))
    tap_row = rng.choice((0, rng.randrange(rows), rows - 1))
    bounded = rng.random() < 0.6
    dilation = rng.choice((1, 1, 1, 2, 3, rng.randint(1, 65535))) if bounded else rng.randrange(4)
    vector = _stride(rng, words)
    line = rng.choice(
        (NO_LINE, rng.randint(1, 9), max(1, rng.choice((8, group_size)) + rng.randint(-1, 1)))
    )
    line_left = rng.choice((line, rng.randint(1, line)))
    walk = Walk(
        address=rng.randrange(words),
        vectors=vectors,
        group_size=group_size,
        vector=vector,
        length=length,
        across=rng.randrange(2),
        column=column,
        row_wrap=row_wrap,
        channel_wrap=channel_wrap,
        tap_column=tap_column,
        tap_row=tap_row,
        columns=columns,
        rows=rows,
        bounded=int(bounded),
        # Column 0 and row 0 are where padding can put them.
        y=_coordinate(rng) + dilation * tap_row,
        x=_coordinate(rng) + dilation * tap_column,
        vector_x=rng.choice((1, 1, 1, 2, 4, rng.randrange(65536))),
        line=line,
        line_left=line_left,
        line_wrap=vector if rng.random() < 0.3 else _stride(rng, words),
        line_x=_coordinate(rng) + dilation * tap_column,
        dilation=dilation,
        height=rng.choice((1, 5, 20, 65535)),
        width=rng.choice((1, 2, 9, 30, 300, 65535)),
    )
    assert {field.name for field in fields(walk)} <= set(dir(walk))
    return walk


def _coordinate(rng: random.Random) -> int:
    return rng.choice(
        (0, -1, -3, rng.randint(-12, 20), rng.randint(-65535, 65535 * 65536), -65535, -65536, 65535)
    )
