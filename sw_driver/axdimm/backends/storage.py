"""Bytes of a simulated channel's DRAM, by address."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hw.dram.geometry import DramGeometry
from hw.logic.line import LINE_BYTES

__all__ = ["DramStorage"]


class DramStorage:
    """Access to the bytes of a channel's DRAM without simulated time.

    ``lines`` has the shape (lines, 64) in the device's order: bank group, bank, row, and line
    within the row. Addresses are those of :mod:`hw.dram.address_map`.
    """

    def __init__(self, geometry: DramGeometry, lines: NDArray[np.uint8]) -> None:
        device = lines.reshape(
            geometry.bank_groups // 2,
            2,
            geometry.banks_per_group,
            geometry.rows,
            geometry.bursts_per_row,
            LINE_BYTES,
        )
        # The linear memory in C order: row, bank, pair of bank groups, line within the row, bank
        # group of the pair, byte. The last three form a block.
        self._memory = device.transpose(3, 2, 0, 4, 1, 5)
        self._block_bytes = 2 * geometry.row_bytes

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Return a copy of the bytes from ``address`` on."""
        data = np.empty(nbytes, np.uint8)
        for block, part, at in self._pieces(address, nbytes):
            data[at] = block.reshape(-1)[part]
        return data

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """Store bytes from ``address`` on."""
        for block, part, at in self._pieces(address, data.size):
            content = block.reshape(-1)
            content[part] = data[at]
            block[...] = content.reshape(block.shape)

    def _pieces(
        self, address: int, nbytes: int
    ) -> Iterator[tuple[NDArray[np.uint8], slice, slice]]:
        """Yield each block with some of the bytes, their slice in it, and their slice in all."""
        done = 0
        while done < nbytes:
            number, start = divmod(address + done, self._block_bytes)
            size = min(self._block_bytes - start, nbytes - done)
            block = self._memory[np.unravel_index(number, self._memory.shape[:3])]
            yield block, slice(start, start + size), slice(done, done + size)
            done += size
