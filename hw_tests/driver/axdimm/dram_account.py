"""Account of a stretch of DRAM commands: what it was spent on, as far as commands alone tell.

Commands and data are known exactly. For the time lost to refreshes and to turning the bus a trace
gives bounds: a refresh certainly closes the channel from its precharge to tRFC after the last
refresh of the batch, and no longer than from the column before to the column after it; turning the
bus costs at most the gaps before columns of another direction, and before columns that follow
in the same bank group, and no gap more than the longest spacing of columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["TraceAccount", "account_trace"]

_SLOT_TCK = 4
"""Clocks that the data of a column command take; a controller gives one in as many."""


@dataclass
class TraceAccount:
    """Account of the clocks from ``begin_tck`` up to but not including ``end_tck``."""

    begin_tck: int
    end_tck: int
    commands: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    """Columns of another direction than the one before, whenever that was."""
    refresh_least_tck: int = 0
    refresh_most_tck: int = 0
    turn_around_most_tck: int = 0

    @property
    def data_tck(self) -> int:
        """Clocks of the data bus that the columns take."""
        return _SLOT_TCK * (self.commands["RD"] + self.commands["WR"])

    @property
    def activates(self) -> int:
        return self.commands["ACT"]

    @property
    def precharges(self) -> int:
        """Precharge commands; PREA counts once."""
        return self.commands["PRE"] + self.commands["PREA"]

    @property
    def refreshes(self) -> int:
        return self.commands["REF"]


def account_trace(
    lines: Iterable[str],
    *,
    channel: int,
    begin_tck: int,
    end_tck: int,
    t_rfc: int,
    longest_spacing_tck: int,
) -> TraceAccount:
    """Return the account of a channel's commands in a stretch of a trace (its lines, see the trace
    format of :mod:`golden.dram_timing`).

    ``t_rfc`` is the part's; ``longest_spacing_tck`` is the longest distance that it asks of two
    columns, a write and a read of one bank group.
    """
    account = TraceAccount(begin_tck, end_tck)
    direction = "RD"
    group_before = ""
    column_end = begin_tck
    closed_since: int | None = None
    last_refresh: int | None = None

    def leave_refresh(until: int) -> None:
        nonlocal closed_since, last_refresh
        if closed_since is not None and last_refresh is not None:
            over = min(last_refresh + t_rfc, until)
            account.refresh_least_tck += max(0, over - max(closed_since, begin_tck))
            account.refresh_most_tck += max(0, until - column_end)
        closed_since = last_refresh = None

    for line in lines:
        if line.startswith(("#", "tck")):
            continue
        when, number, name, group, *_ = line.rstrip("\n").split(",")
        tck = int(when)
        if int(number) != channel or tck >= end_tck:
            continue
        inside = tck >= begin_tck
        account.commands[name] += inside
        if name in ("PREA", "REF"):
            closed_since = tck if closed_since is None else closed_since
            last_refresh = tck if name == "REF" else last_refresh
        elif name in ("RD", "WR"):
            refreshed = last_refresh is not None
            if inside:
                leave_refresh(tck)
                account.turns += name != direction
                gap = tck - column_end
                if not refreshed and (name != direction or group == group_before):
                    account.turn_around_most_tck += min(gap, longest_spacing_tck)
            closed_since = last_refresh = None
            direction, group_before, column_end = name, group, max(tck + _SLOT_TCK, begin_tck)
    leave_refresh(end_tck)
    return account
