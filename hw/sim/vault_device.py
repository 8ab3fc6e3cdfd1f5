"""Simulated DRAM of a vault."""

from __future__ import annotations

from hw.pim.vault.geometry import VaultGeometry
from hw.pim.vault.interface import VaultSignature
from hw.pim.vault.timing import VaultTiming
from hw.sim.dram_device import DramDevice

__all__ = ["VaultDevice"]


class VaultDevice(DramDevice):
    """The :class:`~hw.sim.dram_device.DramDevice` of a vault.

    A word of its array is 32 bytes. A refresh is due tREFI after the last one; none may be
    postponed.
    """

    def __init__(self, *, geometry: VaultGeometry, timing: VaultTiming) -> None:
        super().__init__(
            VaultSignature(geometry),
            timing,
            ROW_BITS=geometry.row_bits,
            COLUMN_BITS=geometry.column_bits,
            BURST_COLUMN_BITS=0,
            MAX_POSTPONED=0,
        )
