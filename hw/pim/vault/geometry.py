"""Organisation of a vault of the memory stack, and which bank holds which address."""

from __future__ import annotations

from dataclasses import dataclass, replace

from amaranth.lib import data

from hw.dram.geometry import rows_of
from hw.logic.checks import check_int
from hw.pim.config import BEAT_BYTES

__all__ = ["ROW_BEATS", "ROW_BYTES", "VaultGeometry"]

ROW_BYTES = 256
"""Bytes of a row, and the largest block of an HMC request."""

ROW_BEATS = ROW_BYTES // BEAT_BYTES
"""Columns of a row."""


@dataclass(frozen=True, kw_only=True)
class VaultGeometry:
    """DRAM layers, banks and rows of a vault.

    HMC 2.1 has 32 vaults with 8 (4 GB) or 16 (8 GB) banks of 16 MB each, in rows of 256 bytes.
    A column command moves :data:`~hw.pim.config.BEAT_BYTES`.
    ``rows`` may be smaller than those of the real part, which only shortens the simulated storage.
    Raises ``ValueError`` for values that the address map cannot serve.
    """

    layers: int = 8
    """DRAM dies of the stack; the banks of a layer share what a DDR4 bank group shares."""

    banks_per_layer: int = 2

    rows: int = 1 << 16
    """Rows of a bank."""

    def __post_init__(self) -> None:
        check_int("layers", self.layers, 2, 8, power_of_two=True)
        check_int("banks_per_layer", self.banks_per_layer, 2, 4, power_of_two=True)
        check_int("rows", self.rows, 2, 1 << 18, power_of_two=True)

    @property
    def layer_bits(self) -> int:
        return self.layers.bit_length() - 1

    @property
    def bank_bits(self) -> int:
        """Width of the number of a bank in its layer."""
        return self.banks_per_layer.bit_length() - 1

    @property
    def row_bits(self) -> int:
        return self.rows.bit_length() - 1

    @property
    def column_bits(self) -> int:
        return ROW_BEATS.bit_length() - 1

    @property
    def banks(self) -> int:
        """Banks of the vault, over all layers."""
        return self.layers * self.banks_per_layer

    @property
    def command_address_bits(self) -> int:
        """Width of the address of a command, which carries a row or a column."""
        return max(self.row_bits, self.column_bits)

    @property
    def capacity_bytes(self) -> int:
        return self.banks * self.rows * ROW_BYTES

    @property
    def address_bits(self) -> int:
        """Width of a byte address of the vault."""
        return self.capacity_bytes.bit_length() - 1

    @property
    def address_layout(self) -> data.StructLayout:
        """The fields of a byte address.

        Beats alternate between two layers, because reads or writes of one layer are further apart
        (tCCD_L) than a beat takes: 512 bytes in a row of the address space are the same row of a
        bank in each of two layers, then come the next two layers, then the next bank.
        """
        return data.StructLayout(
            {
                "byte": BEAT_BYTES.bit_length() - 1,
                "layer_low": 1,
                "column": self.column_bits,
                "layer_high": self.layer_bits - 1,
                "bank": self.bank_bits,
                "row": self.row_bits,
            }
        )

    def with_capacity(self, capacity_bytes: int) -> VaultGeometry:
        """The same banks with as many rows as make ``capacity_bytes``.

        Raises ``ValueError`` unless that is a power-of-two number of rows.
        """
        return replace(self, rows=rows_of(capacity_bytes, self.banks * ROW_BYTES))
