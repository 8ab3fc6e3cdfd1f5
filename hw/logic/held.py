"""Parity of state that holds still between known changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import xor
from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value

__all__ = ["lost_bit", "parity_of"]

_LUT_INPUTS = 6


def parity_of(bits: Any) -> Value:
    """Return the parity of ``bits``, six of them in a lookup table.

    Synthesis makes tables of four from a sum over all bits: half as many again.
    """
    while len(bits) > _LUT_INPUTS:
        bits = Cat(
            bits[first : first + _LUT_INPUTS].xor() for first in range(0, len(bits), _LUT_INPUTS)
        )
    return bits.xor()


def lost_bit(m: Any, name: str, state: Sequence[Any], *changes: Any) -> Signal:
    """Return a register that is set for a cycle after a bit of ``state`` was lost.

    The parity of the state is compared with that of the cycle before, unless one of ``changes``
    was set then. A change may come late in its cycle, and need not change anything. A bit that is
    lost in the first cycle after a change is not noticed.

    The check is a module of its own, so that synthesis maps the state's own logic as without it.
    """
    m.submodules[f"{name}_check"] = check = Module()
    now, parity, upset = Signal(), Signal(), Signal(name=f"{name}_upset")
    # Words are folded first, which a simulator does in an instruction each.
    values = [Value.cast(value) for value in state]
    folded = Signal(max(map(len, values)))
    changed = Signal(len(changes), init=-1)
    check.d.comb += [folded.eq(reduce(xor, values)), now.eq(folded.xor())]
    check.d.sync += [
        changed.eq(Cat(changes)),
        parity.eq(now),
        upset.eq((now ^ parity) & ~changed.any()),
    ]
    return upset
