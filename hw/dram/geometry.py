"""Organisation of one DRAM channel: a rank of devices that together are 64 data bits wide."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hw.logic.checks import check_int, is_int
from hw.logic.line import AXI_BURST_LINES, LINE_BYTES

__all__ = [
    "BURST_COLUMNS",
    "DATA_BYTES",
    "DramGeometry",
    "rows_of",
]

DATA_BYTES = 8
"""Bytes in one transfer on the channel's 64-bit data bus; also the bytes of a column."""

BURST_COLUMNS = LINE_BYTES // DATA_BYTES
"""Columns of one DRAM burst (BL8), which carries a line."""


def rows_of(capacity_bytes: int, row_of_every_bank_bytes: int) -> int:
    """Return the rows of a bank for a capacity.

    Raises ``ValueError`` unless they are a power of two from 2.
    """
    rows = capacity_bytes // row_of_every_bank_bytes if is_int(capacity_bytes) else 0
    if rows < 2 or rows & (rows - 1) or rows * row_of_every_bank_bytes != capacity_bytes:
        raise ValueError(
            f"capacity must be {row_of_every_bank_bytes} bytes (one row of every bank) times a "
            f"power of two of at least 2, got {capacity_bytes!r}"
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class DramGeometry:
    """Banks, rows and columns of one channel (JESD79-4, addressing tables).

    ``rows`` may be fewer than those of the real part, which only shrinks the simulated storage.
    Raises ``ValueError`` for values that the address map cannot serve.

    Examples
    --------
    >>> geometry = DramGeometry(bank_groups=4, rows=1 << 16)
    >>> geometry.banks, geometry.row_bytes, geometry.capacity_bytes >> 30
    (16, 8192, 8)
    >>> geometry.with_capacity(1 << 20).rows
    8
    """

    bank_groups: int
    """Bank groups: 2 (x16 devices) or 4 (x4 and x8 devices)."""

    banks_per_group: int = 4
    """Banks of a bank group, 2 or 4."""

    rows: int
    """Rows of a bank."""

    columns: int = 1024
    """Columns of a row, each 8 bytes wide over the channel."""

    def __post_init__(self) -> None:
        # The longest AXI burst stays in one row of a pair of bank groups, half of it in each.
        least_columns = AXI_BURST_LINES // 2 * BURST_COLUMNS
        for name, low, high in (
            ("bank_groups", 2, 4),
            ("banks_per_group", 2, 4),
            ("rows", 2, 1 << 18),
            ("columns", least_columns, 1024),
        ):
            check_int(name, getattr(self, name), low, high, power_of_two=True)

    @property
    def bank_group_bits(self) -> int:
        """Width of a bank group's number, in bits."""
        return self.bank_groups.bit_length() - 1

    @property
    def bank_bits(self) -> int:
        """Width of a bank's number within its group, in bits."""
        return self.banks_per_group.bit_length() - 1

    @property
    def row_bits(self) -> int:
        """Width of a row address, in bits."""
        return self.rows.bit_length() - 1

    @property
    def column_bits(self) -> int:
        """Width of a column address, in bits."""
        return self.columns.bit_length() - 1

    @property
    def banks(self) -> int:
        """Banks of the channel, over all bank groups."""
        return self.bank_groups * self.banks_per_group

    @property
    def bursts_per_row(self) -> int:
        """Lines in one row."""
        return self.columns // BURST_COLUMNS

    @property
    def column_burst_bits(self) -> int:
        """Width of a burst's number within its row, in bits."""
        return self.bursts_per_row.bit_length() - 1

    @property
    def address_bits(self) -> int:
        """Width of the command address, which carries a row or a column, in bits."""
        return max(self.row_bits, self.column_bits)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over the channel: 8 KB with 1024 columns."""
        return self.columns * DATA_BYTES

    @property
    def lines(self) -> int:
        """64-byte lines of the channel."""
        return self.banks * self.rows * self.bursts_per_row

    @property
    def line_bits(self) -> int:
        """Width of a line address, in bits."""
        return self.lines.bit_length() - 1

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the channel."""
        return self.lines * LINE_BYTES

    def with_capacity(self, capacity_bytes: int) -> DramGeometry:
        """Return the same banks with as many rows as ``capacity_bytes`` needs.

        Raises ``ValueError`` unless that is a power-of-two number of rows.
        """
        return replace(self, rows=rows_of(capacity_bytes, self.banks * self.row_bytes))
