"""The address decoder of ``golden``: its definition in examples."""

from __future__ import annotations

from itertools import product

import pytest

from golden.dram_map import DramAddressMap, DramLocation

MODULE = DramAddressMap(bank_groups=4, banks_per_group=4, rows=1 << 17, columns=1024)
SMALL = [
    DramAddressMap(bank_groups=4, banks_per_group=4, rows=4, columns=256),
    DramAddressMap(bank_groups=2, banks_per_group=4, rows=8, columns=256),
    DramAddressMap(bank_groups=4, banks_per_group=2, rows=2, columns=1024),
]


@pytest.mark.parametrize(
    ("address", "location"),
    [
        (0, (0, 0, 0, 0)),
        (63, (0, 0, 0, 0)),
        (64, (1, 0, 0, 0)),
        (128, (0, 0, 0, 8)),
        (16383, (1, 0, 0, 1016)),
        (16384, (2, 0, 0, 0)),
        (32768, (0, 1, 0, 0)),
        (131072 - 64, (3, 3, 0, 1016)),
        (131072, (0, 0, 1, 0)),
        ((16 << 30) - 64, (3, 3, (1 << 17) - 1, 1016)),
    ],
)
def test_module_of_the_paper(address: int, location: tuple[int, int, int, int]) -> None:
    assert MODULE.capacity_bytes == 16 << 30
    assert MODULE.decode(address) == DramLocation(*location)


@pytest.mark.parametrize("each", SMALL)
def test_every_line_has_its_own_place(each: DramAddressMap) -> None:
    places = [each.decode(64 * line) for line in range(each.lines)]
    columns = range(0, each.columns, 8)
    extents = range(each.bank_groups), range(each.banks_per_group), range(each.rows), columns
    assert sorted(places) == list(product(*extents))


def test_an_address_beyond_the_capacity_is_refused() -> None:
    each = SMALL[0]
    with pytest.raises(ValueError, match="address must be"):
        each.decode(each.capacity_bytes)
