"""Independent decoder of the channel's address map, and the linear view of device storage.

The map is written here from its definition, in plain integers, and shares nothing with the
hardware. A channel is 64 data bits wide, so a column is 8 bytes and a burst of eight columns is a
64-byte line. From the least significant bit, a byte address holds: 6 bits within the line, bit 0 of
the bank group, the burst within the row, the other bits of the bank group, the bank, the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DramAddressMap", "DramLocation"]

LINE_BYTES = 64
COLUMNS_PER_LINE = 8


class DramLocation(NamedTuple):
    """Where a line is; ``column`` is that of its first transfer, a multiple of 8."""

    bank_group: int
    bank: int
    row: int
    column: int


@dataclass(frozen=True, kw_only=True)
class DramAddressMap:
    """Byte addresses of one channel to places in its DRAM. All four numbers are powers of two."""

    bank_groups: int
    banks_per_group: int
    rows: int
    columns: int

    @property
    def lines_per_row(self) -> int:
        return self.columns // COLUMNS_PER_LINE

    @property
    def lines(self) -> int:
        """64-byte lines of the channel."""
        return self.bank_groups * self.banks_per_group * self.rows * self.lines_per_row

    @property
    def capacity_bytes(self) -> int:
        return self.lines * LINE_BYTES

    @property
    def block_bytes(self) -> int:
        """Bytes that lie in one row of each of two bank groups: 16 KB with 1024 columns."""
        return 2 * self.lines_per_row * LINE_BYTES

    def decode(self, address: int) -> DramLocation:
        """Where the byte ``address`` is; ``ValueError`` beyond the capacity."""
        if not 0 <= address < self.capacity_bytes:
            raise ValueError(f"address must be from 0 to {self.capacity_bytes - 1}, got {address}")
        rest, group_low = divmod(address // LINE_BYTES, 2)
        rest, line = divmod(rest, self.lines_per_row)
        rest, group_high = divmod(rest, self.bank_groups // 2)
        row, bank = divmod(rest, self.banks_per_group)
        return DramLocation(2 * group_high + group_low, bank, row, line * COLUMNS_PER_LINE)

    def linear_view(self, storage: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """``storage`` in the order of addresses, without copying.

        ``storage`` has the shape (lines, 64) in device order, that is, by bank group, bank, row
        and line within the row. The view has the axes row, bank, bank group / 2, line within the
        row, bank group % 2, byte; read in C order, it is the linear memory.
        """
        device = storage.reshape(
            self.bank_groups // 2,
            2,
            self.banks_per_group,
            self.rows,
            self.lines_per_row,
            LINE_BYTES,
        )
        return device.transpose(3, 2, 0, 4, 1, 5)

    def read(self, storage: NDArray[np.uint8], address: int, size: int) -> NDArray[np.uint8]:
        """A copy of ``size`` bytes from ``address`` on; ``storage`` as in :meth:`linear_view`."""
        result = np.empty(size, np.uint8)
        for block, start, stop, at in self._pieces(address, size):
            result[at : at + stop - start] = self._block(storage, block).reshape(-1)[start:stop]
        return result

    def write(self, storage: NDArray[np.uint8], address: int, data: NDArray[np.uint8]) -> None:
        """Stores the bytes ``data`` from ``address`` on; nothing else changes."""
        for block, start, stop, at in self._pieces(address, data.size):
            target = self._block(storage, block)
            if stop - start == self.block_bytes:
                target[...] = data[at : at + self.block_bytes].reshape(target.shape)
            else:
                content = target.reshape(-1)
                content[start:stop] = data[at : at + stop - start]
                target[...] = content.reshape(target.shape)

    def _block(self, storage: NDArray[np.uint8], block: int) -> NDArray[np.uint8]:
        rest, group_high = divmod(block, self.bank_groups // 2)
        row, bank = divmod(rest, self.banks_per_group)
        return self.linear_view(storage)[row, bank, group_high]

    def _pieces(self, address: int, size: int) -> list[tuple[int, int, int, int]]:
        """(block, first and last byte + 1 within it, offset in the data) for each block touched."""
        pieces = []
        done = 0
        while done < size:
            block, start = divmod(address + done, self.block_bytes)
            stop = min(self.block_bytes, start + size - done)
            pieces.append((block, start, stop, done))
            done += stop - start
        return pieces
