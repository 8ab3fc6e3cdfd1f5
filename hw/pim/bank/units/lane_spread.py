"""Assignment of a job's first vectors to lanes and to turns of a round."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Mux
from amaranth.lib import data

from hw.float.parts import Bits, wire
from hw.pim.work.layouts import INTERLEAVE, LANE_BITS

__all__ = ["SPREAD", "spread_of", "turn"]

SPREAD = data.StructLayout(
    {
        # Binary logarithm of the first vectors' turns T; 8 / T second vectors share a round.
        "interleave": 2,
        # A bit for each turn of the first vectors: it has any.
        "active": INTERLEAVE,
        # Lanes with a first vector in the last active turn.
        "rest": LANE_BITS + 1,
    }
)
"""Layout of the assignment: with L lanes, first vector v is on lane v mod L in turn v div L."""


def spread_of(first_count: Bits, *, lanes: int) -> dict[str, Bits]:
    """Return the fields of :data:`SPREAD` for ``first_count`` first vectors on ``lanes``."""
    active = [first_count > lanes * turn for turn in range(INTERLEAVE)]
    rest = first_count
    for number in range(1, INTERLEAVE):
        rest = Mux(active[number], first_count - lanes * number, rest)
    return {
        "interleave": Mux(active[4], 3, Mux(active[2], 2, active[1])),
        "active": Cat(*active),
        "rest": rest[: LANE_BITS + 1],
    }


def turn(m: Any, name: str, spread: Any, rho: Bits, lanes: Bits) -> tuple[Bits, Bits, Bits, Bits]:
    """Return the operands of turn ``rho`` of a round.

    They are the turn's number among the first vectors, the number of the second vector, whether
    there are first vectors, and the number of lanes with one.
    """
    first = wire(
        m,
        Cat(*(rho[bit] & (spread.interleave > bit) for bit in range(3))),
        f"{name}_first",
    )
    second = wire(m, (rho >> spread.interleave)[:3], f"{name}_second")
    following = Cat(spread.active[1:], 0).bit_select(first, 1)
    return first, second, spread.active.bit_select(first, 1), Mux(following, lanes, spread.rest)
