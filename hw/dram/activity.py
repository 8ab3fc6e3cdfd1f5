"""What a DRAM controller does with a fabric cycle."""

from __future__ import annotations

from amaranth.lib import enum

__all__ = ["Activity"]


class Activity(enum.Enum, shape=3):
    """Each fabric cycle (four tCK) is exactly one of these; the first that applies counts."""

    DATA = 0
    """A column command is issued: its data take four tCK of the data bus."""

    REFRESH = 1
    """The controller is closed for a refresh, from the decision until rows may be opened again."""

    STARVED = 2
    """There is no request; or, if none of the following applies, the manager does not take the data
    of earlier reads."""

    ROW = 3
    """The oldest request waits for a precharge, an activate or tRCD."""

    TURN_AROUND = 4
    """The oldest request has its row and waits for the spacing of columns: read to write, tWTR or
    tCCD_L."""
