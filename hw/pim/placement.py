"""Placement of arithmetic units in the banks of the stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from hw.logic.checks import check_types

__all__ = ["MAX_LANES", "ThermalWeights", "UnitPlacement", "place"]

MAX_LANES = 16
"""Most lanes of a bank; a lane is a multiplier and an adder."""


@dataclass(frozen=True, kw_only=True)
class ThermalWeights:
    """Relative numbers of units in a bank, by its position; only the ratios matter.

    Banks at edges and corners have better thermal dissipation paths than central ones and so
    support a higher density of units (paper, IV-D). The paper gives no numbers. The defaults
    divide 444 units among 32 banks with nothing left over.

    Examples
    --------
    >>> weights = ThermalWeights(corner=16, edge=14, inside=13)
    >>> [[weights.of(row, column, rows=4, columns=8) for column in (0, 1, 7)] for row in (0, 1)]
    [[16, 14, 16], [14, 13, 14]]
    """

    corner: float = 16.0
    """Weight of a bank with two sides on the rim."""

    edge: float = 14.0
    """Weight of a bank with one side on the rim."""

    inside: float = 13.0
    """Weight of a bank with no side on the rim."""

    def __post_init__(self) -> None:
        for name, weight in vars(self).items():
            if not isinstance(weight, int | float) or not 0 < weight < float("inf"):
                raise ValueError(f"{name} must be a positive, finite weight, got {weight!r}")
        check_types(self)  # also refuses True as a number

    def of(self, row: int, column: int, *, rows: int, columns: int) -> float:
        """Return the weight of the bank at ``row`` and ``column`` of a grid."""
        rims = (row in (0, rows - 1)) + (column in (0, columns - 1))
        return (self.inside, self.edge, self.corner)[rims]


@dataclass(frozen=True, kw_only=True)
class UnitPlacement:
    """Units of every bank, by bank number: row by row from the top left."""

    multipliers: tuple[int, ...]
    adders: tuple[int, ...]

    @property
    def units(self) -> tuple[int, ...]:
        """Multipliers plus adders, by bank."""
        return tuple(map(sum, zip(self.multipliers, self.adders, strict=True)))


def place(*, rows: int, columns: int, total: int, weights: ThermalWeights) -> UnitPlacement:
    """Place ``total`` units, multipliers and adders, on a grid of banks.

    A bank's units are in proportion to its weight, by largest remainders; the lower bank number
    wins a tie. Half of a bank's units are multipliers. Banks with an odd number of units get one
    more multiplier and one more adder alternately, beginning with a multiplier. So the stack has
    equal numbers of both, or one more multiplier if ``total`` is odd.

    Raises ``ValueError`` if a bank would remain without a multiplier or an adder, or get more than
    :data:`MAX_LANES` of one of them.
    """
    shares = [
        weights.of(row, column, rows=rows, columns=columns)
        for row in range(rows)
        for column in range(columns)
    ]
    parts = _apportion(total, shares)
    if min(parts) < 2:
        raise ValueError(
            f"total must leave each of {rows} x {columns} banks a multiplier and an adder, but "
            f"{total} leave{'s' * (total == 1)} {min(parts)} units to one; place more or weigh "
            "them less unevenly"
        )
    if max(parts) > 2 * MAX_LANES:
        raise ValueError(
            f"total must give no bank more than {MAX_LANES} multipliers and {MAX_LANES} adders, "
            f"but {total} bring {max(parts)} units to one of {rows} x {columns} banks; place "
            "fewer, take more banks or weigh them less unevenly"
        )
    multipliers, extra = [], 1
    for part in parts:
        multipliers.append((part + extra) // 2)
        extra ^= part & 1
    return UnitPlacement(
        multipliers=tuple(multipliers),
        adders=tuple(part - own for part, own in zip(parts, multipliers, strict=True)),
    )


def _apportion(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Divide ``total`` into whole parts in proportion to ``shares``, by largest remainders."""
    exact = [total * share / sum(shares) for share in shares]
    parts = [floor(part) for part in exact]
    by_loss = sorted(range(len(parts)), key=lambda bank: parts[bank] - exact[bank])
    for bank in by_loss[: total - sum(parts)]:
        parts[bank] += 1
    return tuple(parts)
