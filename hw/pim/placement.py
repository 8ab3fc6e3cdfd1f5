"""How many arithmetic units each bank of the stack gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from hw.logic.checks import check_types

__all__ = ["MAX_LANES", "Placement", "ThermalWeights", "place"]

MAX_LANES = 16
"""Lanes of a bank at most: a lane is a multiplier and an adder."""


@dataclass(frozen=True, kw_only=True)
class ThermalWeights:
    """What share of the units a bank gets, by its position; only the ratios matter.

    Banks at edges and corners have better thermal dissipation paths than central ones and so
    support a higher density of units (paper, IV-D). The paper gives no numbers. The defaults are
    those that bring 444 units to 32 banks with nothing left over.
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
        check_types(self)  # True is no number

    def of(self, row: int, column: int, *, rows: int, columns: int) -> float:
        """The weight of the bank at ``row`` and ``column`` of a grid."""
        rims = (row in (0, rows - 1)) + (column in (0, columns - 1))
        return (self.inside, self.edge, self.corner)[rims]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The units of every bank, by bank number: row by row from the top left."""

    multipliers: tuple[int, ...]
    adders: tuple[int, ...]

    @property
    def units(self) -> tuple[int, ...]:
        """Multipliers and adders together, by bank."""
        return tuple(map(sum, zip(self.multipliers, self.adders, strict=True)))


def place(*, rows: int, columns: int, total: int, weights: ThermalWeights) -> Placement:
    """Places ``total`` units, multipliers and adders, on a grid of banks.

    A bank's part is in proportion to its weight, rounded down; what then is left goes one by one
    to the banks that lost most by it, among equals to the lower number. Half of a bank's units are
    multipliers; of the banks with an odd number the first has one multiplier more, the second one
    adder more, and so on, so that the whole has as many of each (one more multiplier if ``total``
    is odd).

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
    return Placement(
        multipliers=tuple(multipliers),
        adders=tuple(part - own for part, own in zip(parts, multipliers, strict=True)),
    )


def _apportion(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """``total`` in whole parts in proportion to ``shares``, by largest remainders."""
    exact = [total * share / sum(shares) for share in shares]
    parts = [floor(part) for part in exact]
    by_loss = sorted(range(len(parts)), key=lambda bank: parts[bank] - exact[bank])
    for bank in by_loss[: total - sum(parts)]:
        parts[bank] += 1
    return tuple(parts)
