"""How a job's first vectors lie on the lanes and in the turns of a round."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Mux
from amaranth.lib import data

from hw.float.parts import Bits, wire
from hw.pim.work.layouts import INTERLEAVE, LANE_BITS

__all__ = ["SPREAD", "spread_of", "turn"]

SPREAD = data.StructLayout(
    {
        # Logarithm of the turns that first vectors take; 8 / that many second vectors take turns.
        "interleave": 2,
        # Of each turn of the first vectors: whether there is one.
        "active": INTERLEAVE,
        # Lanes that have one in the last active turn.
        "rest": LANE_BITS + 1,
    }
)
"""First vector v of a job is on lane v mod L, in turn v div L of L lanes."""


def spread_of(first_count: Bits, *, lanes: int) -> dict[str, Bits]:
    """The fields of :data:`SPREAD` for ``first_count`` first vectors on ``lanes``."""
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
    """What comes at place ``rho`` of a round: number of the first and of the second vector,
    whether there is a first one, and the lanes that have one."""
    first = wire(
        m,
        Cat(*(rho[bit] & (spread.interleave > bit) for bit in range(3))),
        f"{name}_first",
    )
    second = wire(m, (rho >> spread.interleave)[:3], f"{name}_second")
    following = Cat(spread.active[1:], 0).bit_select(first, 1)
    return first, second, spread.active.bit_select(first, 1), Mux(following, lanes, spread.rest)
