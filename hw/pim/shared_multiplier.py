"""Sums of products, computed one after the other on one multiplier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Mux, Signal, Value

from hw.float.parts import carry, delayed_pulse

__all__ = ["SharedMultiplier", "Sum"]


class Sum(NamedTuple):
    """``target`` = ``base`` + (or -, if ``negative``) the sum of the products of ``terms``."""

    target: Any
    base: Any
    terms: Sequence[tuple[Any, Any]]
    negative: bool = False


class SharedMultiplier:
    """Lists of sums, one product a cycle, modulo 2 ** ``width``; factors are unsigned.

    A pulse on ``start[name]`` starts that list; its sums are computed in order. Their inputs must
    hold still until ``done``, a pulse n + 3 cycles after ``start`` for n products. In that cycle
    all sums are in their targets. A sum may use targets of other lists, not of its own list.
    """

    def __init__(self, m: Any, *, width: int, lists: dict[str, Sequence[Sum]]) -> None:
        steps = [
            (item, number, term)
            for sums in lists.values()
            for item in sums
            for number, term in enumerate(item.terms)
        ]
        self.start = {name: Signal(name=f"start_{name}") for name in lists}
        self.done = Signal(name="sums_done")
        step, active = Signal(range(len(steps) + 1)), Signal()
        last = Signal()
        end = 0
        begins = {}
        ends = []
        for name, sums in lists.items():
            begins[name] = end
            end += sum(len(item.terms) for item in sums)
            ends.append(end - 1)
        m.d.comb += last.eq(Cat(step == end for end in ends).any())
        with m.If(active):
            m.d.sync += [step.eq(step + 1), active.eq(~last)]
        for name, begin in begins.items():
            with m.If(self.start[name]):
                m.d.sync += [step.eq(begin), active.eq(1)]

        # Factors, product, sum: a cycle each.
        sides = [*zip(*(map(Value.cast, term) for _, _, term in steps), strict=True)]
        for factor in (value for side in sides for value in side):
            if factor.shape().signed:
                raise ValueError(f"factors must be unsigned, got {factor!r}")
        factors = [Signal(max(map(len, side))) for side in sides]
        with m.If(active), m.Switch(step):
            for place, (_, _, (a, b)) in enumerate(steps):
                with m.Case(place):
                    m.d.sync += [factors[0].eq(a), factors[1].eq(b)]
        multiplies = delayed_pulse(m, active, 1, "multiplies")
        adds = delayed_pulse(m, multiplies, 1, "adds")
        added = carry(m, 2, "step", step=step).step
        product = Signal(width)
        with m.If(multiplies):
            m.d.sync += product.eq(factors[0] * factors[1])
        total = Signal(width)
        before, negative = Signal(width), Signal()
        value = Signal(width)
        m.d.comb += value.eq(before + Mux(negative, -product, product))
        with m.If(adds), m.Switch(added):
            for place, (item, number, _) in enumerate(steps):
                target = item.target if number == len(item.terms) - 1 else total
                with m.Case(place):
                    m.d.comb += [
                        before.eq(total if number else item.base),
                        negative.eq(item.negative),
                    ]
                    m.d.sync += target.eq(value)
        m.d.comb += self.done.eq(delayed_pulse(m, active & last, 3, "finished"))
