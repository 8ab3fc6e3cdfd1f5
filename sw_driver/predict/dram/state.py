"""What a channel remembers between two runs, as far as it matters to the time of the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import DramConfig
from .refresh import RefreshClock, RefreshState

__all__ = ["ChannelState", "Tally"]


@dataclass(frozen=True, kw_only=True)
class ChannelState:
    """A channel without requests, at START or at any other moment."""

    refresh: RefreshState
    open_rows: tuple[int, ...] = ()
    """The open row of each bank, -1 if there is none; empty if all banks are closed. The index of
    a bank is its group times the banks of a group, plus its number in the group."""
    writing: bool = False
    """The last column was a write."""
    since_column: int = 1 << 40
    """Fabric cycles since the last column, by default long ones."""

    @classmethod
    def after_idle(
        cls, config: DramConfig, elapsed_fabric_cycles: int | None = None
    ) -> ChannelState:
        """After a long time without requests; as :meth:`RefreshState.after_idle`."""
        return cls(refresh=RefreshState.after_idle(config, elapsed_fabric_cycles))

    def after_rest(self, config: DramConfig, fabric_cycles: int) -> ChannelState:
        """After some more cycles without requests, which refreshes may use."""
        clock = RefreshClock(config, self.refresh)
        refresh = clock.rest(
            fabric_cycles, last_end=-self.since_column, any_open=bool(self.open_rows)
        )
        return replace(
            self,
            refresh=refresh,
            open_rows=() if clock.given else self.open_rows,
            since_column=self.since_column + fabric_cycles,
        )


@dataclass
class Tally:
    """What a channel did up to a moment. The first five are times, in fabric cycles."""

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
