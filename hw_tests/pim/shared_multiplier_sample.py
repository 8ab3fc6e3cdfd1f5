"""Two lists of sums of products, with factors of several widths."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.pim.shared_multiplier import SharedMultiplier, Sum

__all__ = ["FACTORS", "PRODUCTS", "WIDTH", "SharedMultiplierSample"]

WIDTH = 33
FACTORS = {"short": 3, "middle": 17, "long": WIDTH, "other_long": WIDTH}
"""The widths of the factors, which are inputs."""

PRODUCTS = {"one": 4, "two": 5}
"""How many products each list has."""


class SharedMultiplierSample(wiring.Component):
    """A list ``one``, which starts with ``start_one``, and a list ``two``.

    Members
    -------
    short, middle, long, other_long, base : In
    start_one, start_two : In(1)
    plus, minus, narrow : Out
        The sums of list ``one``.
    ends, of_plus : Out
        Those of list ``two``; ``of_plus`` begins with ``plus``.
    done : Out(1)
    """

    def __init__(self) -> None:
        super().__init__(
            {
                **{name: In(width) for name, width in FACTORS.items()},
                "base": In(WIDTH),
                **{f"start_{name}": In(1) for name in PRODUCTS},
                **{name: Out(WIDTH) for name in ("plus", "minus", "ends", "of_plus")},
                "narrow": Out(7),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        this: Any = self
        short, middle, long, other_long = (getattr(this, name) for name in FACTORS)
        targets = {
            name: Signal(getattr(this, name).shape(), name=f"{name}_target")
            for name in ("plus", "minus", "narrow", "ends", "of_plus")
        }
        multiplier = SharedMultiplier(
            m,
            width=WIDTH,
            lists={
                "one": [
                    Sum(targets["plus"], this.base, [(short, long), (long, middle)]),
                    Sum(targets["minus"], this.base, [(middle, other_long)], negative=True),
                    Sum(targets["narrow"], 0, [(middle, 1)]),
                ],
                "two": [
                    Sum(
                        targets["ends"],
                        short,
                        [(long, other_long), (5, middle), (short, short)],
                        negative=True,
                    ),
                    Sum(targets["of_plus"], targets["plus"], [(other_long, short), (long, 1)]),
                ],
            },
        )
        m.d.comb += [getattr(this, name).eq(target) for name, target in targets.items()]
        m.d.comb += [multiplier.start[name].eq(getattr(this, f"start_{name}")) for name in PRODUCTS]
        m.d.comb += this.done.eq(multiplier.done)
        return m
