"""The bytes of a simulated DRAM by their addresses, where the golden decoder has them."""

from __future__ import annotations

import numpy as np
import pytest

from golden.dram_map import DramAddressMap
from hw.dram.geometry import DramGeometry
from sw_driver.axdimm.backends.storage import DramStorage


@pytest.mark.parametrize(
    "geometry",
    [
        DramGeometry(bank_groups=4, banks_per_group=4, rows=4, columns=256),
        DramGeometry(bank_groups=2, banks_per_group=4, rows=8, columns=256),
        DramGeometry(bank_groups=4, banks_per_group=2, rows=2, columns=1024),
    ],
)
def test_bytes_are_where_the_map_has_them(geometry: DramGeometry) -> None:
    rng = np.random.default_rng(3)
    places = DramAddressMap(
        bank_groups=geometry.bank_groups,
        banks_per_group=geometry.banks_per_group,
        rows=geometry.rows,
        columns=geometry.columns,
    )
    linear = rng.integers(0, 256, geometry.capacity_bytes, np.uint8)
    lines = np.zeros((geometry.lines, 64), np.uint8)
    for line in range(geometry.lines):
        place = places.decode(64 * line)
        bank = place.bank_group * geometry.banks_per_group + place.bank
        index = (bank * geometry.rows + place.row) * geometry.bursts_per_row + place.column // 8
        lines[index] = linear[64 * line : 64 * line + 64]
    storage = DramStorage(geometry, lines)
    for _ in range(100):
        start, stop = map(int, np.sort(rng.integers(0, geometry.capacity_bytes + 1, 2)))
        assert np.array_equal(storage.read(start, stop - start), linear[start:stop])
        data = rng.integers(0, 256, stop - start, np.uint8)
        linear[start:stop] = data
        storage.write(start, data)
    assert np.array_equal(storage.read(0, geometry.capacity_bytes), linear)
