"""DRAM timing as the controller schedules it: whole fabric cycles between fixed command slots."""

from __future__ import annotations

from dataclasses import dataclass

from hw.dram.interface import SLOTS
from hw.dram.timing import BURST_TCK, CommandTiming, DramTiming

__all__ = ["COLUMN_SLOT", "FabricTiming", "fabric_cycles", "read_latency", "write_latency"]

COLUMN_SLOT = 0
"""RD and WR are always in the first slot, so that their data fill whole fabric words."""


def fabric_cycles(tck: int, first: int, second: int) -> int:
    """The least fabric cycles from a command in slot ``first`` to one in slot ``second`` that keep
    ``tck``; at least one, because a command shows in the state only in the next cycle."""
    return max(1, -(-(tck + first - second) // SLOTS))


def read_latency(timing: CommandTiming, slot: int = 0) -> int:
    """Fabric cycles from the one that carries a RD in ``slot`` to that of its ``read_data``.

    The first cycle that starts when the burst has been received in full.
    """
    return -(-(slot + timing.cl + BURST_TCK) // SLOTS)


def write_latency(timing: CommandTiming, slot: int = 0) -> int:
    """Fabric cycles from the one that carries a WR in ``slot`` to that of its ``write_data``.

    The last cycle that starts no later than the first transfer of the burst.
    """
    return (slot + timing.cwl) // SLOTS


@dataclass(frozen=True, kw_only=True)
class FabricTiming:
    """Slots of the row commands and distances in fabric cycles, made by :meth:`of`.

    A distance n means: the second command is at least n fabric cycles after the first, each in
    its slot. ACT and REF share one slot, PRE and PREA another.
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
        """The slots that make a row cycle shortest, and the distances that follow."""
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
            # Rounded down: never less often than the standard asks.
            refresh_interval=timing.t_refi // SLOTS,
        )
