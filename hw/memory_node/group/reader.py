"""Asks memory for what a link reads."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.group.layouts import Place, Stripe
from hw.memory_node.group.stripes import StripeWalker

__all__ = ["Reader"]


class Reader(wiring.Component):
    """Cuts reads into bursts.

    Members
    -------
    i : In(stream of :class:`~hw.memory_node.group.layouts.Place`)
    bursts : Out(stream of :class:`~hw.memory_node.group.layouts.Stripe`), one for each channel
        One at a time.
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        super().__init__(
            {
                "i": In(stream.Signature(Place(config))),
                "bursts": Out(stream.Signature(Stripe(config))).array(config.group_channels),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.walker = walker = StripeWalker(self._config)
        wiring.connect(m, wiring.flipped(self.i), walker.i)
        m.d.comb += walker.step_lines.eq(walker.lines)
        for index, burst in enumerate(self.bursts):
            m.d.comb += [
                burst.valid.eq(walker.active & (walker.place.channel == index)),
                burst.payload.line.eq(walker.place.line),
                burst.payload.lines.eq(walker.lines),
            ]
            with m.If(burst.valid & burst.ready):
                m.d.comb += walker.step.eq(1)
        return m
