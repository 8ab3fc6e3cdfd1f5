"""The interfaces between a bank's buffers and those that use them."""

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
"""Words that a buffer reads or writes in a cycle: one in each of its columns of memory."""

GROUP_BITS = 3
"""A buffer holds up to 2 ** ``GROUP_BITS`` groups of eight vectors."""

RESULT_FRAMES = 4
"""Frames: parts of the result buffer, of which each is written while others are stored."""

RESULT_INDEX_BITS = 6
"""A frame holds 2 ** ``RESULT_INDEX_BITS`` words for each group of eight lanes."""


class BufferReadSignature(wiring.Signature):
    """Eight words a cycle of an operand buffer, as the reader sees it.

    Exactly two cycles after a cycle with ``enable``, ``data`` has element ``k`` of the vectors 0 to
    7 of ``group`` in ``half``; with ``wide``, the elements ``k`` - ``k`` mod 8 + (0 to 7) of vector
    0 of group 0. Otherwise ``data`` is arbitrary.
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
    """Results of the lanes, as the writer of the result buffer sees it.

    In a cycle with ``enable``, lane i with ``mask[i]`` has in ``data[i]`` the result number
    ``index`` (0 to 7) of its own; with ``linear``, the result number ``index`` + i of the frame. A
    reader finds it there from the next cycle on.
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
