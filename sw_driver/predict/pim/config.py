"""The stack that a prediction is made for: its units, buffers and the timing of its vaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from golden.pim.vault_timing import VaultTable
from sw_driver.predict.dram.timing import TCK_PER_FABRIC_CYCLE, fabric_cycles

__all__ = ["BEAT_WORDS", "INTERLEAVE", "PoolCycleConfig", "VaultTimes"]

BEAT_WORDS = 8
"""Elements of what a vault moves in a cycle."""

INTERLEAVE = 8
"""Results on which a lane works in turn."""

_ACTIVATE_SLOT = 1
"""Of a cycle's four command slots, for activates and refreshes; columns are in slot 0."""
_QUEUE = 16
"""Requests of a vault that wait for their banks."""


class VaultTimes:
    """Distances of a vault's commands in cycles, as ``part`` asks for them."""

    def __init__(self, part: VaultTable) -> None:
        slot, burst = _ACTIVATE_SLOT, TCK_PER_FABRIC_CYCLE
        self.read_latency = -(-(part.cl + burst) // burst)
        self.activate_to_column = fabric_cycles(part.t_rcd, slot, 0)
        self.activate_to_activate = fabric_cycles(part.t_rrd_s, slot, slot)
        self.four_activates = fabric_cycles(part.t_faw, slot, slot)
        self.column_to_column_same_layer = fabric_cycles(part.t_ccd_l, 0, 0)
        self.read_to_write = fabric_cycles(part.cl - part.cwl + burst + 2, 0, 0)
        self.write_to_read = fabric_cycles(part.written + part.t_wtr_s, 0, 0)
        self.write_to_read_same_layer = fabric_cycles(part.written + part.t_wtr_l, 0, 0)
        rest = fabric_cycles(part.t_rc, slot, slot) - self.activate_to_column
        self.read_to_activate = max(rest, fabric_cycles(part.t_rtp + part.t_rp, 0, slot))
        written = part.written + part.t_wr + part.t_rp
        self.write_to_activate = max(rest, fabric_cycles(written, 0, slot))
        self.refresh_to_activate = fabric_cycles(part.t_rfc, slot, slot)
        # What is queued may have a turn of the bus for every bank, and a row that opens anew.
        turn = max(self.read_to_write, self.write_to_read_same_layer)
        opened = min(part.layers * part.banks_per_layer, _QUEUE)
        drain = opened * turn + (_QUEUE - opened) * self.column_to_column_same_layer
        drain += 3 * (self.activate_to_column + self.write_to_activate) + 2
        self.refresh_after = part.t_refi // burst - drain
        """From a refresh until nothing more is activated, for the next one."""


@dataclass(frozen=True, kw_only=True)
class PoolCycleConfig:
    """A stack with its pool.

    Parameters
    ----------
    multipliers, adders
        Of each bank.
    bank_bytes
        Local memory of a bank.
    vault
        What the vaults are made of.
    """

    multipliers: tuple[int, ...]
    adders: tuple[int, ...]
    bank_bytes: int
    vault: VaultTable

    @property
    def banks(self) -> int:
        """Banks of the stack."""
        return len(self.multipliers)

    @cached_property
    def units(self) -> Sequence[int]:
        """Multipliers and adders of each bank."""
        return [m + a for m, a in zip(self.multipliers, self.adders, strict=True)]
