"""Counts of a run, and of a part of a run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tally"]


@dataclass
class Tally:
    """What happened up to a moment. The first five are times, in fabric cycles."""

    data: int = 0
    """A column was given, of one line."""
    refresh: int = 0
    row: int = 0
    turn_around: int = 0
    starved: int = 0
    activates: int = 0
    precharges: int = 0
    refreshes: int = 0
    bus_turns: int = 0
