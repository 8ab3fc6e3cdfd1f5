"""DRAM timing for the scheduler: whole fabric cycles between fixed command slots."""

from __future__ import annotations

from dataclasses import dataclass

from hw.dram.interface import SLOTS
from hw.dram.timing import BURST_TCK, CommandTiming, DramTiming

__all__ = ["COLUMN_SLOT", "FabricTiming", "fabric_cycles", "read_latency", "write_latency"]

COLUMN_SLOT = 0
"""Slot of RD and WR: always the first, so that their data fills whole fabric words."""


def fabric_cycles(tck: int, first: int, second: int) -> int:
    """Return the minimum fabric cycles between commands in two slots that are ``tck`` apart.

    It is at least one, because a command changes the state only in the next cycle.
    """
    return max(1, -(-(tck + first - second) // SLOTS))


def read_latency(timing: CommandTiming, slot: int = 0) -> int:
    """Return the fabric cycles from a RD in ``slot`` to its ``read_data``.

    The data is there in the first cycle that starts after the whole burst has been received.
    """
    return -(-(slot + timing.cl + BURST_TCK) // SLOTS)


def write_latency(timing: CommandTiming, slot: int = 0) -> int:
    """Return the fabric cycles from a WR in ``slot`` to its ``write_data``.

    The data is taken in the last cycle that starts no later than the burst's first transfer.
    """
    return (slot + timing.cwl) // SLOTS


@dataclass(frozen=True, kw_only=True)
class FabricTiming:
    """Slots of the row commands and distances in fabric cycles, made by :meth:`of`.

    With a distance n the second command is at least n fabric cycles after the first, each in its
    slot. ACT and REF share one slot, PRE and PREA another.
    """

    activate_slot: int
    precharge_slot: int
    read_latency: int
    write_latency: int
    activate_to_column: int
    precharge_to_activate: int
    activate_to_precharge: int
    read_to_precharge: int
    write_to_precharge: int
    activate_to_activate: int
    activate_to_activate_same_group: int
    four_activates: int
    column_to_column_same_group: int
    read_to_write: int
    write_to_read: int
    write_to_read_same_group: int
    refresh_to_activate: int
    refresh_interval: int

    @classmethod
    def of(cls, timing: DramTiming) -> FabricTiming:
        """Return the slots with the shortest row cycle, and the distances between them."""
        slots = [slot for slot in range(SLOTS) if slot != COLUMN_SLOT]
        candidates = [cls._with_slots(timing, a, p) for a in slots for p in slots if a != p]
        return min(candidates, key=lambda candidate: candidate._row_cycle())

    def _row_cycle(self) -> tuple[int, int]:
        return (
            self.precharge_to_activate + self.activate_to_column,
            self.activate_to_precharge + self.write_to_precharge + self.read_to_precharge,
        )

    @classmethod
    def _with_slots(cls, timing: DramTiming, activate: int, precharge: int) -> FabricTiming:
        cycles, column = fabric_cycles, COLUMN_SLOT
        # Long enough that tRAS + tRP also cover tRC.
        t_ras = max(timing.t_ras, timing.t_rc - timing.t_rp)
        return cls(
            activate_slot=activate,
            precharge_slot=precharge,
            read_latency=read_latency(timing, column),
            write_latency=write_latency(timing, column),
            activate_to_column=cycles(timing.t_rcd, activate, column),
            precharge_to_activate=cycles(timing.t_rp, precharge, activate),
            activate_to_precharge=cycles(t_ras, activate, precharge),
            read_to_precharge=cycles(timing.t_rtp, column, precharge),
            write_to_precharge=cycles(timing.write_to_precharge, column, precharge),
            activate_to_activate=cycles(timing.t_rrd_s, activate, activate),
            activate_to_activate_same_group=cycles(timing.t_rrd_l, activate, activate),
            four_activates=cycles(timing.t_faw, activate, activate),
            column_to_column_same_group=cycles(timing.t_ccd_l, column, column),
            read_to_write=cycles(timing.read_to_write, column, column),
            write_to_read=cycles(timing.write_to_read_s, column, column),
            write_to_read_same_group=cycles(timing.write_to_read_l, column, column),
            refresh_to_activate=cycles(timing.t_rfc, activate, activate),
            # Rounded down, so that refreshes are never too rare for the standard.
            refresh_interval=timing.t_refi // SLOTS,
        )
