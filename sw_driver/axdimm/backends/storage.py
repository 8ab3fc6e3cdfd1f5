"""The bytes in a simulated channel's DRAM, by their addresses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hw.dram.geometry import DramGeometry
from hw.logic.line import LINE_BYTES

__all__ = ["DramStorage"]


class DramStorage:
    """Reads and writes the bytes of a channel's DRAM, in no simulated time.

    ``lines`` has the shape (lines, 64), in the device's order: by bank group, bank, row and line
    within the row. Addresses are as in :mod:`hw.dram.address_map`.
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
        # In C order the linear memory: row, bank, pair of bank groups, line within the row, which
        # of the pair, byte. The last three are a block.
        self._memory = device.transpose(3, 2, 0, 4, 1, 5)
        self._block_bytes = 2 * geometry.row_bytes

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of the bytes from ``address`` on."""
        data = np.empty(nbytes, np.uint8)
        for block, part, at in self._pieces(address, nbytes):
            data[at] = block.reshape(-1)[part]
        return data

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """Stores bytes from ``address`` on; nothing else changes."""
        for block, part, at in self._pieces(address, data.size):
            content = block.reshape(-1)
            content[part] = data[at]
            block[...] = content.reshape(block.shape)

    def _pieces(
        self, address: int, nbytes: int
    ) -> Iterator[tuple[NDArray[np.uint8], slice, slice]]:
        """Each block that has some of the bytes, where they are in it, and which they are."""
        done = 0
        while done < nbytes:
            number, start = divmod(address + done, self._block_bytes)
            size = min(self._block_bytes - start, nbytes - done)
            block = self._memory[np.unravel_index(number, self._memory.shape[:3])]
            yield block, slice(start, start + size), slice(done, done + size)
            done += size
