"""Sums over all parameters of a run, in an order that does not depend on the lanes."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.float.add import FloatAdd
from hw.float.format import FP32, FloatFormat
from hw.kernel.config import PARAMETERS_PER_BEAT
from hw.logic.shared import Shared

__all__ = ["ACCUMULATORS", "LaneSums"]

ACCUMULATORS = 16
"""Number of accumulators. It exceeds the adder's stages, so that each is ready when its turn comes
again."""


class LaneSums(wiring.Component):
    """Adds up what the lanes give.

    The 16 values of a line are added as a binary tree of neighbours. The sum of line k goes to
    accumulator k mod 16; all begin at +0. At the end the accumulators are added as a binary tree of
    neighbours.

    Parameters
    ----------
    lanes
        Values added in a cycle.
    format
        FP32, with subnormal numbers or without.
    enable
        Enable of the adders, if each register is to have one. The surrounding registers then need
        it from the component's user.

    Members
    -------
    clear : In(1)
        Begins a run: all accumulators become +0. Not while ``busy``.
    valid : In(1)
        ``values`` are the next of a line; not before the cycle after ``clear``.
    values : In(32), one for each lane
        What is added.
    finish : In(1)
        No more values come; must stay high until ``busy`` falls.
    sum : Out(32)
        The sum of the last run, when ``busy`` has fallen.
    busy : Out(1)
        High from the cycle after ``clear`` until the sum is ready.
    """

    def __init__(self, *, lanes: int, format: FloatFormat = FP32, enable: Any = None) -> None:
        self._lanes = lanes
        self._format = format
        self._enable = enable
        super().__init__(
            {
                "clear": In(1),
                "valid": In(1),
                "values": In(32).array(lanes),
                "finish": In(1),
                "sum": Out(32),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        adder = FloatAdd(format=self._format)
        count = 0

        def add(valid: Any, a: Any, b: Any) -> tuple[Any, Any]:
            nonlocal count
            shared: Any = Shared(adder, name=adder.module_name, enable=self._enable)
            m.submodules[f"add_{count}"] = shared
            count += 1
            m.d.comb += [shared.i_valid.eq(valid), shared.i_a.eq(a), shared.i_b.eq(b)]
            return shared.o_valid, shared.o_y

        # Over the lanes, in parallel.
        valid, level = self.valid, list(self.values)
        while len(level) > 1:
            pairs = [
                add(valid, one, other) for one, other in zip(level[::2], level[1::2], strict=True)
            ]
            valid, level = pairs[0][0], [value for _, value in pairs]
        value = level[0]
        # Over the parts of a line, in sequence; lines are whole, so the first part is known.
        depth = self._lanes
        while depth < PARAMETERS_PER_BEAT:
            first = Signal(32, name=f"first_{depth}", reset_less=True)
            second = Signal(name=f"second_{depth}")
            with m.If(valid):
                m.d.sync += [first.eq(value), second.eq(~second)]
            valid, value = add(valid & second, first, value)
            depth *= 2

        # Into the accumulators, and at the end the accumulators into each other.
        sums = Array(
            Signal(32, name=f"sum_{index}", reset_less=True) for index in range(ACCUMULATORS)
        )
        place = Signal(range(ACCUMULATORS))
        pairs_left = Signal(range(ACCUMULATORS // 2 + 1))
        reducing = Signal()
        issue = Signal()
        target = Signal.like(place)
        augend = Signal(32)
        addend = Signal(32)
        done, result = add(issue, augend, addend)
        targets = [
            Signal.like(place, name=f"target_{cycle}", reset_less=True)
            for cycle in range(adder.latency)
        ]
        m.d.sync += Cat(targets).eq(Cat(target, *targets[:-1]))
        with m.If(done):
            m.d.sync += sums[targets[-1]].eq(result)
        m.d.comb += [target.eq(place), self.sum.eq(sums[0])]
        with m.If(reducing):
            m.d.comb += [augend.eq(sums[(place << 1)[: len(place)]])]
            m.d.comb += [addend.eq(sums[((place << 1) | 1)[: len(place)]])]
        with m.Else():
            m.d.comb += [issue.eq(valid), augend.eq(sums[place]), addend.eq(value)]

        # Maximum cycles for values in flight when no more come.
        way = adder.latency * (PARAMETERS_PER_BEAT.bit_length() - 1)
        wait = Signal(range(way + adder.latency + 2))
        with m.FSM(name="state") as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"), m.If(self.clear):
                m.d.sync += [place.eq(0), *(accumulator.eq(0) for accumulator in sums)]
                m.next = "ADD"
            with m.State("ADD"):
                with m.If(valid):
                    m.d.sync += place.eq(place + 1)
                m.d.sync += [wait.eq(way + adder.latency + 1), pairs_left.eq(ACCUMULATORS // 2)]
                with m.If(self.finish):
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                with m.If(valid):
                    m.d.sync += place.eq(place + 1)
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.d.sync += place.eq(0)
                    m.next = "REDUCE"
                    with m.If(pairs_left == 0):
                        m.next = "IDLE"
            with m.State("REDUCE"):
                m.d.comb += [reducing.eq(1), issue.eq(1)]
                m.d.sync += place.eq(place + 1)
                with m.If(place == pairs_left - 1):
                    m.d.sync += [
                        wait.eq(adder.latency),
                        pairs_left.eq(pairs_left >> 1),
                    ]
                    m.next = "DRAIN"
        return m
