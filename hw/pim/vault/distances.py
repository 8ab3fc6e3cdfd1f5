"""Timing of a vault in the controller's units: fabric cycles between fixed command slots."""

from __future__ import annotations

from dataclasses import dataclass

from hw.dram.fabric_timing import COLUMN_SLOT, fabric_cycles, read_latency, write_latency
from hw.dram.interface import SLOTS
from hw.pim.vault.timing import VaultTiming

__all__ = ["QUEUE_DEPTH", "VaultDistances"]

QUEUE_DEPTH = 16
"""Maximum number of requests of a vault that wait for their banks."""


@dataclass(frozen=True, kw_only=True)
class VaultDistances:
    """Slot of ACT and REF, and distances between commands in fabric cycles; see :meth:`of`.

    With a distance n, the second command comes at least n fabric cycles after the first, each in
    its slot. Two of the four slots are enough: one for a column command every cycle, one for an
    activate at most every second cycle. Precharges need no slot. One slot would not be enough:
    eight columns of a row and its activate are nine commands in eight cycles.
    """

    activate_slot: int
    read_latency: int
    write_latency: int
    activate_to_column: int
    activate_to_activate: int
    activate_to_activate_same_layer: int
    four_activates: int
    column_to_column_same_layer: int
    read_to_write: int
    write_to_read: int
    write_to_read_same_layer: int
    read_to_activate: int
    """Fabric cycles from a bank's last read to its next activate, tRAS and tRC included."""
    write_to_activate: int
    """Fabric cycles from a bank's last write to its next activate, tRAS and tRC included."""
    refresh_to_activate: int
    refresh_interval: int

    @classmethod
    def of(cls, timing: VaultTiming) -> VaultDistances:
        """Return the distances with the activate slot that makes a row cycle shortest."""
        slots = [slot for slot in range(SLOTS) if slot != COLUMN_SLOT]
        return min((cls._with_slot(timing, slot) for slot in slots), key=cls._row_cycles)

    def drain_cycles(self, banks: int) -> int:
        """Return the fabric cycles before a refresh in which no bank may be activated.

        In the worst case, the queue then holds a change of direction for every one of ``banks``. It
        also holds two more accesses to their stretch of addresses, each after a row cycle.
        """
        turn = max(self.read_to_write, self.write_to_read_same_layer)
        open_banks = min(banks, QUEUE_DEPTH)
        row_cycle = self.activate_to_column + max(self.read_to_activate, self.write_to_activate)
        rest = (QUEUE_DEPTH - open_banks) * self.column_to_column_same_layer
        return open_banks * turn + rest + 3 * row_cycle + 2

    def _row_cycles(self) -> int:
        return 2 * self.activate_to_column + self.read_to_activate + self.write_to_activate

    @classmethod
    def _with_slot(cls, timing: VaultTiming, activate: int) -> VaultDistances:
        cycles, column = fabric_cycles, COLUMN_SLOT
        activate_to_column = cycles(timing.t_rcd, activate, column)
        # A column is never closer to its activate, so this covers tRC, and tRAS plus tRP.
        rest_of_row_cycle = (
            cycles(max(timing.t_rc, timing.t_ras + timing.t_rp), activate, activate)
            - activate_to_column
        )
        return cls(
            activate_slot=activate,
            read_latency=read_latency(timing, column),
            write_latency=write_latency(timing, column),
            activate_to_column=activate_to_column,
            activate_to_activate=cycles(timing.t_rrd_s, activate, activate),
            activate_to_activate_same_layer=cycles(timing.t_rrd_l, activate, activate),
            four_activates=cycles(timing.t_faw, activate, activate),
            column_to_column_same_layer=cycles(timing.t_ccd_l, column, column),
            read_to_write=cycles(timing.read_to_write, column, column),
            write_to_read=cycles(timing.write_to_read_s, column, column),
            write_to_read_same_layer=cycles(timing.write_to_read_l, column, column),
            # At least two, because the controller tracks a bank for a cycle or more.
            read_to_activate=max(
                2, rest_of_row_cycle, cycles(timing.read_to_activate, column, activate)
            ),
            write_to_activate=max(
                2, rest_of_row_cycle, cycles(timing.write_to_activate, column, activate)
            ),
            refresh_to_activate=cycles(timing.t_rfc, activate, activate),
            # Rounded down: never less often than t_refi says.
            refresh_interval=timing.t_refi // SLOTS,
        )
