"""The stack that a prediction is made for: its units, buffers and the timing of its vaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from golden.cycles.timing import TCK_PER_FABRIC_CYCLE, fabric_cycles
from golden.pim.vault_timing import VaultTable

__all__ = ["BEAT_WORDS", "INTERLEAVE", "PoolCycleConfig", "VaultTimes"]

BEAT_WORDS = 8
"""Elements of what a vault moves in a cycle."""

INTERLEAVE = 8
"""Results on which a lane works in turn."""


@dataclass(frozen=True, kw_only=True)
class VaultTimes:
    """Distances of a vault's commands in cycles, made by :meth:`of`.

    Columns are in the first of a cycle's four command slots, activates and refreshes in the one
    that opens and closes a row fastest.
    """

    read_latency: int
    activate_to_column: int
    activate_to_activate: int
    activate_to_activate_same_layer: int
    four_activates: int
    column_to_column_same_layer: int
    read_to_write: int
    write_to_read: int
    write_to_read_same_layer: int
    read_to_activate: int
    write_to_activate: int
    refresh_to_activate: int
    refresh_interval: int
    refresh_after: int
    """From a refresh until nothing more is activated, for the next one."""

    @classmethod
    def of(cls, part: VaultTable) -> VaultTimes:
        """The distances that a part asks for."""
        burst = TCK_PER_FABRIC_CYCLE
        cycles = fabric_cycles

        def distances(slot: int) -> VaultTimes:
            to_column = cycles(part.t_rcd, slot, 0)
            rest = cycles(max(part.t_rc, part.t_ras + part.t_rp), slot, slot) - to_column
            to_read, to_read_same = (
                cycles(part.written + wait, 0, 0) for wait in (part.t_wtr_s, part.t_wtr_l)
            )
            to_write = cycles(part.cl - part.cwl + burst + 2, 0, 0)
            after_read = max(2, rest, cycles(part.t_rtp + part.t_rp, 0, slot))
            after_write = max(2, rest, cycles(part.written + part.t_wr + part.t_rp, 0, slot))
            same_layer = cycles(part.t_ccd_l, 0, 0)
            refresh_to_activate = cycles(part.t_rfc, slot, slot)
            interval = part.t_refi // TCK_PER_FABRIC_CYCLE
            opened = min(part.layers * part.banks_per_layer, _QUEUE)
            drain = (
                opened * max(to_write, to_read_same)
                + (_QUEUE - opened) * same_layer
                + 3 * (to_column + max(after_read, after_write))
                + 2
            )
            return cls(
                read_latency=-(-(part.cl + burst) // TCK_PER_FABRIC_CYCLE),
                activate_to_column=to_column,
                activate_to_activate=cycles(part.t_rrd_s, slot, slot),
                activate_to_activate_same_layer=cycles(part.t_rrd_l, slot, slot),
                four_activates=cycles(part.t_faw, slot, slot),
                column_to_column_same_layer=same_layer,
                read_to_write=to_write,
                write_to_read=to_read,
                write_to_read_same_layer=to_read_same,
                read_to_activate=after_read,
                write_to_activate=after_write,
                refresh_to_activate=refresh_to_activate,
                refresh_interval=interval,
                refresh_after=interval - drain,
            )

        return min(
            (distances(slot) for slot in range(1, TCK_PER_FABRIC_CYCLE)),
            key=lambda each: (
                2 * each.activate_to_column + each.read_to_activate + each.write_to_activate
            ),
        )


_QUEUE = 16
"""Requests of a vault that wait for their banks."""


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
