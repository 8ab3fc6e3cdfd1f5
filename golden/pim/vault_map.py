"""Address map of a vault: layer, bank, row and column of an address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["VaultAddressMap", "VaultPlace"]

_BEAT_BYTES = 32
_COLUMNS = 8


class VaultPlace(NamedTuple):
    """Place of 32 bytes."""

    layer: int
    bank: int
    row: int
    column: int


@dataclass(frozen=True, kw_only=True)
class VaultAddressMap:
    """Address map: 512 consecutive bytes alternate, by 32, between one row in each of two layers.

    The next 512 bytes are in the next two layers. After the last layers comes the next bank, after
    the last bank the next row.

    Examples
    --------
    >>> vault = VaultAddressMap(layers=8, banks_per_layer=2, rows=16)
    >>> for address in (0, 32, 64, 512):
    ...     print(vault.decode(address))
    VaultPlace(layer=0, bank=0, row=0, column=0)
    VaultPlace(layer=1, bank=0, row=0, column=0)
    VaultPlace(layer=0, bank=0, row=0, column=1)
    VaultPlace(layer=2, bank=0, row=0, column=0)
    """

    layers: int
    banks_per_layer: int
    rows: int

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the vault."""
        return self.layers * self.banks_per_layer * self.rows * _COLUMNS * _BEAT_BYTES

    def decode(self, address: int) -> VaultPlace:
        """Return the place of the byte ``address``; ``ValueError`` beyond the capacity."""
        if not 0 <= address < self.capacity_bytes:
            raise ValueError(f"address must be below {self.capacity_bytes}, got {address!r}")
        stretch, beat = divmod(address // _BEAT_BYTES, 2 * _COLUMNS)
        column, parity = divmod(beat, 2)
        bank_of_row, pair = divmod(stretch, self.layers // 2)
        row, bank = divmod(bank_of_row, self.banks_per_layer)
        return VaultPlace(2 * pair + parity, bank, row, column)
