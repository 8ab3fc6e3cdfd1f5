"""Units a bank: the paper's sum, positions, weights, halves, remainders, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from hw.pim.placement import ThermalWeights, UnitPlacement, place


def placed(rows: int, columns: int, total: int, **weights: float) -> UnitPlacement:
    return place(rows=rows, columns=columns, total=total, weights=ThermalWeights(**weights))


def test_the_papers_444() -> None:
    placement = placed(4, 8, 444)
    outer, inner = [16, *[14] * 6, 16], [14, *[13] * 6, 14]
    assert placement.units == tuple(outer + inner + inner + outer)
    assert (sum(placement.multipliers), sum(placement.adders)) == (222, 222)
    # The inner banks have seven of one and six of the other, in turn.
    assert placement.multipliers[8:16] == (7, 7, 6, 7, 6, 7, 6, 7)
    assert placement.adders[8:16] == (7, 6, 7, 6, 7, 6, 7, 7)
    # An 11 x 11 filter's 241 are in 18 banks, with 242 that work in lanes.
    assert sum(placement.units[:17]) < 241 < sum(placement.units[:18]) == 249
    assert 2 * sum(map(min, placement.multipliers[:18], placement.adders[:18])) == 242


def test_444_pairs() -> None:
    placement = placed(4, 8, 888)
    assert placement.multipliers == placement.adders == placed(4, 8, 444).units


def test_weights() -> None:
    # Four corners of weight 3, four edges of 2, one inside of 1: 21 parts of 10 units.
    placement = placed(3, 3, 210, corner=3, edge=2, inside=1)
    assert placement.units == (30, 20, 30, 20, 10, 20, 30, 20, 30)
    assert placed(3, 3, 210, corner=0.3, edge=0.2, inside=0.1) == placement
    assert set(placed(4, 8, 320, corner=1, edge=1, inside=1).units) == {10}


def test_remainders() -> None:
    # 20 / 21 of each: 2.86, 1.90 and 0.95 a bank, so 2, 1 and 0; 12 of 20 units. The inside lost
    # most, then the edges, then the first three corners.
    with pytest.raises(ValueError, match="total must leave each of 3 x 3 banks a multiplier and"):
        placed(3, 3, 20, corner=3, edge=2, inside=1)
    # 41 / 21 of each: 5.86, 3.90 and 1.95 a bank, so 5, 3 and 1; 8 of the 9 have one more.
    assert placed(3, 3, 41, corner=3, edge=2, inside=1).units == (6, 4, 6, 4, 2, 4, 6, 4, 5)


@pytest.mark.parametrize("total", range(64, 500, 7))
def test_all_units_are_placed(total: int) -> None:
    placement = placed(4, 8, total)
    units = placement.units
    assert sum(units) == total
    assert sum(placement.multipliers) - sum(placement.adders) == total % 2
    differences = {m - a for m, a in zip(placement.multipliers, placement.adders, strict=True)}
    assert differences <= {-1, 0, 1}
    corners, insides = {units[i] for i in (0, 7, 24, 31)}, {*units[9:15], *units[17:23]}
    edges = {*units[1:7], units[8], units[15], units[16], units[23], *units[25:31]}
    assert min(corners) >= max(edges)
    assert min(edges) >= max(insides)


def test_one_row_has_edges_and_corners() -> None:
    assert placed(1, 4, 60).units == (16, 14, 14, 16)
    assert placed(1, 1, 9).multipliers == (5,)


def test_refuses_banks_without_units() -> None:
    with pytest.raises(ValueError, match=r"but 63 leave 1 units to one; place more"):
        placed(4, 8, 63)


def test_refuses_banks_with_too_many_units() -> None:
    assert placed(1, 1, 32).units == (32,)
    with pytest.raises(ValueError, match=r"but 33 bring 33 units to one of 1 x 1 banks; place few"):
        placed(1, 1, 33)
    assert placed(2, 2, 128).adders == (16, 16, 16, 16)
    with pytest.raises(ValueError, match=r"but 129 bring 33 units to one of 2 x 2"):
        placed(2, 2, 129)


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan"), "16"])
def test_refuses_weights(weight: Any) -> None:
    with pytest.raises(ValueError, match=f"edge must be a positive, finite weight, got {weight!r}"):
        ThermalWeights(edge=weight)
