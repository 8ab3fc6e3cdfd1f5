"""DRAM timing in fabric cycles: distances between commands that keep their places in a cycle.

A fabric cycle has four command slots, one for each tCK. Reads and writes are always in slot 0,
activates and refreshes share another one, precharges a third; which, is chosen so that a closed row
is opened fastest, and then so that a row can be closed soonest. A distance in tCK becomes the
fabric cycles after which the second command, in its slot, keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from ..axdimm.config import CycleConfig

__all__ = ["TCK_PER_FABRIC_CYCLE", "FabricTimes", "fabric_cycles"]

TCK_PER_FABRIC_CYCLE = 4

_COLUMN_SLOT = 0
_BURST_TCK = 4


def fabric_cycles(tck: int, first_slot: int, second_slot: int) -> int:
    """Fewest fabric cycles, at least one, from a command in one slot to one in another."""
    return max(1, -(-(tck + first_slot - second_slot) // TCK_PER_FABRIC_CYCLE))


@dataclass(frozen=True, kw_only=True)
class FabricTimes:
    """Distances in fabric cycles, made by :meth:`of`."""

    read_latency: int
    """From a read to the cycle in which all of its data are there."""
    write_latency: int
    """From a write to the cycle that hands out its data."""
    activate_to_column: int
    activate_to_precharge: int
    activate_to_activate: int
    activate_to_activate_same_group: int
    four_activates: int
    precharge_to_activate: int
    read_to_precharge: int
    write_to_precharge: int
    column_to_column_same_group: int
    read_to_write: int
    write_to_read: int
    write_to_read_same_group: int
    refresh_to_activate: int
    refresh_interval: int

    @classmethod
    def of(cls, config: CycleConfig) -> FabricTimes:
        """The distances that ``config`` asks for."""
        slots = [slot for slot in range(TCK_PER_FABRIC_CYCLE) if slot != _COLUMN_SLOT]
        return min(
            (cls._in_slots(config, *pair) for pair in permutations(slots, 2)),
            key=lambda times: (
                times.precharge_to_activate + times.activate_to_column,
                times.activate_to_precharge + times.read_to_precharge + times.write_to_precharge,
            ),
        )

    @classmethod
    def _in_slots(cls, config: CycleConfig, activate: int, precharge: int) -> FabricTimes:
        c, column = config, _COLUMN_SLOT
        write_to_data_end = c.cwl + _BURST_TCK
        return cls(
            read_latency=-(-(column + c.cl + _BURST_TCK) // TCK_PER_FABRIC_CYCLE),
            write_latency=(column + c.cwl) // TCK_PER_FABRIC_CYCLE,
            activate_to_column=fabric_cycles(c.t_rcd, activate, column),
            # Late enough that a precharge and the next activate also keep tRC.
            activate_to_precharge=fabric_cycles(max(c.t_ras, c.t_rc - c.t_rp), activate, precharge),
            activate_to_activate=fabric_cycles(c.t_rrd_s, activate, activate),
            activate_to_activate_same_group=fabric_cycles(c.t_rrd_l, activate, activate),
            four_activates=fabric_cycles(c.t_faw, activate, activate),
            precharge_to_activate=fabric_cycles(c.t_rp, precharge, activate),
            read_to_precharge=fabric_cycles(c.t_rtp, column, precharge),
            write_to_precharge=fabric_cycles(write_to_data_end + c.t_wr, column, precharge),
            column_to_column_same_group=fabric_cycles(c.t_ccd_l, column, column),
            # The read's data, a clock to turn the bus and a clock of write preamble.
            read_to_write=fabric_cycles(c.cl - c.cwl + _BURST_TCK + 2, column, column),
            write_to_read=fabric_cycles(write_to_data_end + c.t_wtr_s, column, column),
            write_to_read_same_group=fabric_cycles(write_to_data_end + c.t_wtr_l, column, column),
            refresh_to_activate=fabric_cycles(c.t_rfc, activate, activate),
            # Rounded down: never less often than the standard asks.
            refresh_interval=c.t_refi // TCK_PER_FABRIC_CYCLE,
        )
