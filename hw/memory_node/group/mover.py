"""Mover of a link's writes to memory, and collector of memory's answers."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.line import LINE_BITS
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.group.layouts import Place, Stripe
from hw.memory_node.group.stripes import StripeWalker, give_bursts
from hw.stream.fifo import StreamFifo

__all__ = ["WriteCollector", "WriteMover"]


class WriteMover(wiring.Component):
    """Cuts writes into bursts and has their data follow, a line a cycle.

    Members
    -------
    i : In(stream of :class:`~hw.memory_node.group.layouts.Place`)
    lines : In(stream of lines)
        The data of all of ``i``.
    bursts : Out(stream of :class:`~hw.memory_node.group.layouts.Stripe`), one for each channel
        One at a time.
    data : Out(stream of lines), one for each channel
        The lines of a burst, from the cycle after it was taken.
    written : Out(1)
        Pulse: a line has gone.
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        channels = config.group_channels
        super().__init__(
            {
                "i": In(stream.Signature(Place(config))),
                "lines": In(stream.Signature(LINE_BITS)),
                "bursts": Out(stream.Signature(Stripe(config))).array(channels),
                "data": Out(stream.Signature(LINE_BITS)).array(channels),
                "written": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.walker = walker = StripeWalker(self._config)
        wiring.connect(m, wiring.flipped(self.i), walker.i)
        left = Signal.like(walker.lines)
        channel = Signal.like(walker.place.channel)
        ready = Signal()
        m.d.comb += [
            self.written.eq(self.lines.valid & self.lines.ready),
            ready.eq((left == 0) | ((left == 1) & self.written)),
        ]
        with m.If(give_bursts(m, walker, self.bursts, may=ready)):
            m.d.sync += [left.eq(walker.lines), channel.eq(walker.place.channel)]
        with m.Elif(self.written):
            m.d.sync += left.eq(left - 1)
        for index, target in enumerate(self.data):
            chosen = channel == index
            m.d.comb += [
                target.payload.eq(self.lines.payload),
                target.valid.eq(self.lines.valid & chosen & (left != 0)),
            ]
            with m.If(chosen):
                m.d.comb += self.lines.ready.eq(target.ready & (left != 0))
        return m


class WriteCollector(wiring.Component):
    """Collects the answers to all bursts of a write.

    Members
    -------
    i : In(stream of :class:`~hw.memory_node.group.layouts.Place`)
    answers : In(stream of a bit), one for each channel
        For each burst, whether memory answered with an error.
    o : Out(stream of a bit)
        For each write, whether memory did so for one of its bursts.
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        super().__init__(
            {
                "i": In(stream.Signature(Place(config))),
                "answers": In(stream.Signature(1)).array(config.group_channels),
                "o": Out(stream.Signature(1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.walker = walker = StripeWalker(self._config)
        # As many writes may be in flight as requests.
        m.submodules.done = done = StreamFifo(shape=1, depth=self._config.requests, early=True)
        wiring.connect(m, wiring.flipped(self.i), walker.i)
        wiring.connect(m, done.o, wiring.flipped(self.o))
        failed = Signal()
        valid = Array(channel_answer.valid for channel_answer in self.answers)[walker.place.channel]
        error: Any = Array(channel_answer.payload for channel_answer in self.answers)[
            walker.place.channel
        ]
        m.d.comb += [
            walker.step_lines.eq(walker.lines),
            walker.step.eq(walker.active & valid),
            done.i.valid.eq(walker.step & walker.last),
            done.i.payload.eq(failed | error),
        ]
        with m.If(walker.step):
            m.d.sync += failed.eq(Mux(walker.last, 0, failed | error))
        for index, channel_answer in enumerate(self.answers):
            m.d.comb += channel_answer.ready.eq(walker.active & (walker.place.channel == index))
        return m
