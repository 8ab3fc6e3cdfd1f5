"""Organisation of a vault of the memory stack, and its address map."""

from __future__ import annotations

from dataclasses import dataclass, replace

from amaranth.lib import data

from hw.dram.geometry import rows_of
from hw.logic.checks import check_int
from hw.pim.config import BEAT_BYTES

__all__ = ["ROW_BEATS", "ROW_BYTES", "VaultGeometry"]

ROW_BYTES = 256
"""Bytes of a row; also the largest block of an HMC request."""

ROW_BEATS = ROW_BYTES // BEAT_BYTES
"""Columns of a row."""


@dataclass(frozen=True, kw_only=True)
class VaultGeometry:
    """Numbers of DRAM layers, banks and rows of a vault.

    HMC 2.1 has 32 vaults with 8 (4 GB) or 16 (8 GB) banks of 16 MB each, in rows of 256 bytes.
    A column command moves :data:`~hw.pim.config.BEAT_BYTES`.
    ``rows`` may be smaller than in the real part, which only shortens the simulated storage.
    Raises ``ValueError`` for values that the address map cannot serve.

    Examples
    --------
    >>> vault = VaultGeometry()
    >>> vault.banks, vault.capacity_bytes >> 20
    (16, 256)
    >>> vault.with_capacity(1 << 20).rows
    256
    """

    layers: int = 8
    """DRAM dies of the stack; a layer's banks share timing limits like a DDR4 bank group's."""

    banks_per_layer: int = 2

    rows: int = 1 << 16
    """Rows of a bank."""

    def __post_init__(self) -> None:
        check_int("layers", self.layers, 2, 8, power_of_two=True)
        check_int("banks_per_layer", self.banks_per_layer, 2, 4, power_of_two=True)
        check_int("rows", self.rows, 2, 1 << 18, power_of_two=True)

    @property
    def layer_bits(self) -> int:
        """Width of a layer's number."""
        return self.layers.bit_length() - 1

    @property
    def bank_bits(self) -> int:
        """Width of a bank's number in its layer."""
        return self.banks_per_layer.bit_length() - 1

    @property
    def row_bits(self) -> int:
        """Width of a row's number."""
        return self.rows.bit_length() - 1

    @property
    def column_bits(self) -> int:
        """Width of a column's number: of a beat in a row."""
        return ROW_BEATS.bit_length() - 1

    @property
    def banks(self) -> int:
        """Banks of the vault, over all layers."""
        return self.layers * self.banks_per_layer

    @property
    def command_address_bits(self) -> int:
        """Width of a command's address, which is a row or a column."""
        return max(self.row_bits, self.column_bits)

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the vault."""
        return self.banks * self.rows * ROW_BYTES

    @property
    def address_bits(self) -> int:
        """Width of a byte address of the vault."""
        return self.capacity_bytes.bit_length() - 1

    @property
    def address_layout(self) -> data.StructLayout:
        """Layout of a byte address.

        Beats alternate between two layers, because column commands to one layer are further apart
        (tCCD_L) than the length of a beat. So 512 consecutive bytes are one row in each of two
        layers. The next two layers follow, then the next bank.
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
        """Return the same banks with the number of rows that makes ``capacity_bytes``.

        Raises ``ValueError`` unless that is a power-of-two number of rows.
        """
        return replace(self, rows=rows_of(capacity_bytes, self.banks * ROW_BYTES))
