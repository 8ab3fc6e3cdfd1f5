"""Activity of a DRAM controller in a fabric cycle."""

from __future__ import annotations

from amaranth.lib import enum

__all__ = ["Activity"]


class Activity(enum.Enum, shape=3):
    """Activity of a fabric cycle (four tCK): the first of these that applies."""

    DATA = 0
    """The controller issues a column command: its data takes four tCK of the data bus."""

    REFRESH = 1
    """The controller is closed for a refresh, from the decision until rows may be opened again."""

    STARVED = 2
    """There is no request, or, if nothing below applies, the manager does not take the data of
    earlier reads."""

    ROW = 3
    """The oldest request waits for a precharge, an activate or tRCD."""

    TURN_AROUND = 4
    """The row of the oldest request is open, but the spacing of columns (read to write, tWTR or
    tCCD_L) delays it."""
