"""Interfaces of a bank's buffers."""

from __future__ import annotations

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.work.layouts import Jobs

__all__ = [
    "COLUMNS",
    "GROUP_BITS",
    "RESULT_FRAMES",
    "RESULT_INDEX_BITS",
    "BufferReadSignature",
    "ResultWriteSignature",
]

COLUMNS = 8
"""Words that a buffer reads or writes per cycle: one in each of its memory columns."""

GROUP_BITS = 3
"""Width of a group's number: a buffer holds up to 2 ** ``GROUP_BITS`` groups of eight vectors."""

RESULT_FRAMES = 4
"""Frames of the result buffer; one is written while others are stored."""

RESULT_INDEX_BITS = 6
"""Width of a result's number: a frame holds 2 ** this words for each group of eight lanes."""


class BufferReadSignature(wiring.Signature):
    """Read port of an operand buffer, eight words a cycle, as the reader sees it.

    Exactly two cycles after ``enable``, ``data`` has element ``k`` of vectors 0 to 7 of ``group``
    in ``half``. With ``wide`` it has elements ``k`` - ``k`` mod 8 + (0 to 7) of vector 0 of group 0
    instead. In other cycles ``data`` is arbitrary.
    """

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(
            {
                "enable": Out(1),
                "half": Out(1),
                "group": Out(GROUP_BITS),
                "k": Out(jobs.k_bits),
                "wide": Out(1),
                "data": In(data.ArrayLayout(32, COLUMNS)),
            }
        )


class ResultWriteSignature(wiring.Signature):
    """Write port of the result buffer, as the writer sees it.

    In a cycle with ``enable``, ``data[i]`` is a result of lane i if ``mask[i]`` is set: its result
    number ``index``, 0 to 7. With ``linear`` it is result number ``index`` + i of the frame
    instead. It can be read from the next cycle on.
    """

    def __init__(self, lanes: int) -> None:
        super().__init__(
            {
                "enable": Out(1),
                "frame": Out(range(RESULT_FRAMES)),
                "linear": Out(1),
                "index": Out(RESULT_INDEX_BITS),
                "mask": Out(lanes),
                "data": Out(data.ArrayLayout(32, lanes)),
            }
        )
