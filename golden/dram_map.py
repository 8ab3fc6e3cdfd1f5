"""Independent decoder of the channel's address map.

The map is written here from its definition, in plain integers, and shares nothing with the
hardware. A channel is 64 data bits wide, so a column is 8 bytes and a burst of eight columns is a
64-byte line. From the least significant bit, a byte address holds: 6 bits within the line, bit 0 of
the bank group, the burst within the row, the other bits of the bank group, the bank, the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DramAddressMap", "DramLocation"]

LINE_BYTES = 64
COLUMNS_PER_LINE = 8


class DramLocation(NamedTuple):
    """Location of a line; ``column`` is that of its first transfer, a multiple of 8."""

    bank_group: int
    bank: int
    row: int
    column: int


@dataclass(frozen=True, kw_only=True)
class DramAddressMap:
    """Map from byte addresses of one channel to its DRAM; all four numbers are powers of two.

    Examples
    --------
    >>> dram = DramAddressMap(bank_groups=4, banks_per_group=4, rows=1 << 16, columns=1024)
    >>> dram.capacity_bytes >> 30
    8
    >>> for address in (0, 64, 1 << 20):
    ...     print(dram.decode(address))
    DramLocation(bank_group=0, bank=0, row=0, column=0)
    DramLocation(bank_group=1, bank=0, row=0, column=0)
    DramLocation(bank_group=0, bank=0, row=8, column=0)
    """

    bank_groups: int
    banks_per_group: int
    rows: int
    columns: int

    @property
    def lines_per_row(self) -> int:
        """64-byte lines of a row of one bank."""
        return self.columns // COLUMNS_PER_LINE

    @property
    def lines(self) -> int:
        """64-byte lines of the channel."""
        return self.bank_groups * self.banks_per_group * self.rows * self.lines_per_row

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the channel."""
        return self.lines * LINE_BYTES

    def decode(self, address: int) -> DramLocation:
        """Return the location of the byte ``address``; raise ``ValueError`` beyond the capacity."""
        if not 0 <= address < self.capacity_bytes:
            raise ValueError(f"address must be from 0 to {self.capacity_bytes - 1}, got {address}")
        rest, group_low = divmod(address // LINE_BYTES, 2)
        rest, line = divmod(rest, self.lines_per_row)
        rest, group_high = divmod(rest, self.bank_groups // 2)
        row, bank = divmod(rest, self.banks_per_group)
        return DramLocation(2 * group_high + group_low, bank, row, line * COLUMNS_PER_LINE)
