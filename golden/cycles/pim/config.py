"""The stack that a prediction is made for: its units, buffers and the timing of its vaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from golden.cycles.timing import TCK_PER_FABRIC_CYCLE, fabric_cycles

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
    def of(
        cls,
        *,
        cl: int,
        cwl: int,
        t_rcd: int,
        t_rp: int,
        t_ras: int,
        t_rc: int,
        t_ccd_l: int,
        t_rrd_s: int,
        t_rrd_l: int,
        t_faw: int,
        t_wr: int,
        t_wtr_s: int,
        t_wtr_l: int,
        t_rtp: int,
        t_rfc: int,
        t_refi: int,
        banks: int,
        **_: int,
    ) -> VaultTimes:
        """The distances that a part asks for, which is given in clocks of 0.8 ns, with ``banks``
        in a vault. What else is given does not matter to them."""
        burst = TCK_PER_FABRIC_CYCLE
        cycles = fabric_cycles

        def distances(slot: int) -> VaultTimes:
            to_column = cycles(t_rcd, slot, 0)
            rest = cycles(max(t_rc, t_ras + t_rp), slot, slot) - to_column
            to_read, to_read_same = (
                cycles(cwl + burst + wait, 0, 0) for wait in (t_wtr_s, t_wtr_l)
            )
            to_write = cycles(cl - cwl + burst + 2, 0, 0)
            after_read = max(2, rest, cycles(t_rtp + t_rp, 0, slot))
            after_write = max(2, rest, cycles(cwl + burst + t_wr + t_rp, 0, slot))
            same_layer = cycles(t_ccd_l, 0, 0)
            refresh_to_activate = cycles(t_rfc, slot, slot)
            interval = t_refi // TCK_PER_FABRIC_CYCLE
            opened = min(banks, _QUEUE)
            drain = (
                opened * max(to_write, to_read_same)
                + (_QUEUE - opened) * same_layer
                + 3 * (to_column + max(after_read, after_write))
                + 2
            )
            return cls(
                read_latency=-(-(cl + burst) // TCK_PER_FABRIC_CYCLE),
                activate_to_column=to_column,
                activate_to_activate=cycles(t_rrd_s, slot, slot),
                activate_to_activate_same_layer=cycles(t_rrd_l, slot, slot),
                four_activates=cycles(t_faw, slot, slot),
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
    bank_bytes, buffer_bytes, state_words, works
        As of the hardware's configuration: memory and operand buffers of a bank, intermediate sums
        of a lane, works that are accepted and not completed.
    vault
        Timing of the vaults.
    banks_per_layer, layers
        DRAM banks of a vault.
    """

    multipliers: tuple[int, ...]
    adders: tuple[int, ...]
    bank_bytes: int
    buffer_bytes: int
    state_words: int
    works: int
    vault: VaultTimes
    layers: int = 8
    banks_per_layer: int = 2

    @property
    def banks(self) -> int:
        """Banks of the stack."""
        return len(self.multipliers)

    @cached_property
    def units(self) -> Sequence[int]:
        """Multipliers and adders of each bank."""
        return [m + a for m, a in zip(self.multipliers, self.adders, strict=True)]

    @property
    def first_words(self) -> int:
        """Elements of the first operand that a group of eight lanes has in half a buffer."""
        groups = -(-max(*self.multipliers, *self.adders) // 8)
        return self.buffer_bytes // 16 // groups

    @property
    def second_words(self) -> int:
        """Elements of the second operand in half a buffer."""
        return self.buffer_bytes // 32
