"""Answer maker of a link."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import Flit, FlitStream, Head, Operation, Status
from hw.memory_node.group.layouts import Answer, Events, Line, Place
from hw.memory_node.group.stripes import StripeWalker
from hw.stream.fifo import StreamFifo

__all__ = ["AnswerMaker"]

_DEPTH = 8


class AnswerMaker(wiring.Component):
    """Answers in the order of the requests, a flit a cycle.

    A read's answer begins when its first line has arrived. If a line has an error, one more flit
    follows the last.

    Members
    -------
    node : In(8)
        Number of the node that answers.
    answers : In(stream of :data:`~hw.memory_node.group.layouts.Answer`)
        What to answer; those that are not refused need what follows.
    fetches : In(stream of :class:`~hw.memory_node.group.layouts.Place`)
        For each read, where its data come from.
    stored : In(stream of a bit)
        For each write that it is in memory, and whether there was an error.
    available : In(channels)
        A channel has a line.
    fetch : Out(channels)
        Takes a line of a channel.
    lines : In(:data:`~hw.memory_node.group.layouts.Line`), one for each channel
        What was taken in the cycle before.
    o : Out(FlitStream)
    answered, done : Out(1)
        Pulse: an answer is made; it is one that was not refused.
    events : Out(:data:`~hw.memory_node.group.layouts.Events`)
        What happens on the link, but for ``line_written``.
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        channels = config.group_channels
        super().__init__(
            {
                "node": In(8),
                "answers": In(stream.Signature(Answer)),
                "fetches": In(stream.Signature(Place(config))),
                "stored": In(stream.Signature(1)),
                "available": In(channels),
                "fetch": Out(channels),
                "lines": In(Line).array(channels),
                "o": Out(FlitStream),
                "answered": Out(1),
                "done": Out(1),
                "events": Out(Events),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.walker = walker = StripeWalker(self._config)
        m.submodules.flits = flits = StreamFifo(shape=Flit, depth=_DEPTH, early=True)
        wiring.connect(m, wiring.flipped(self.fetches), walker.i)
        wiring.connect(m, flits.o, wiring.flipped(self.o))
        channel = walker.place.channel
        there = Signal()
        m.d.comb += there.eq(walker.active & Array(self.available)[channel])

        # A decision of one cycle becomes a flit in the next, when a line has arrived.
        answer: Any = self.answers.payload
        step = data.StructLayout(
            {"data": 1, "last": 1, "channel": len(channel), "status": Answer["status"].shape}
        )
        decided: Any = Signal(step)
        making: Any = Signal(step, reset_less=True)
        stepped = Signal()
        head = Signal(Answer, reset_less=True)
        moving = Signal()
        hold = Signal()
        reading = Signal()
        may = Signal()
        refused = answer.status != Status.OK
        m.d.comb += may.eq((flits.level < _DEPTH - 2) & ~hold)
        # Set for requests that go to memory.
        read, write = (
            ~refused & (answer.operation == operation)
            for operation in (Operation.READ_DATA, Operation.WRITE_DONE)
        )
        m.d.comb += [
            decided.channel.eq(channel),
            decided.status.eq(answer.status),
            walker.step_lines.eq(1),
        ]
        with m.If(reading):
            m.d.comb += [
                self.fetch.bit_select(channel, 1).eq(moving),
                decided.data.eq(1),
                decided.last.eq(walker.last),
                moving.eq(may & there),
                walker.step.eq(moving),
                self.answered.eq(moving & walker.last),
            ]
            with m.If(self.answered):
                m.d.sync += reading.eq(0)
        with m.Elif(self.answers.valid & may):
            m.d.comb += [
                moving.eq(refused | (read & there) | (write & self.stored.valid)),
                decided.last.eq(~read),
                self.stored.ready.eq(write),
                self.answered.eq(moving & ~read),
            ]
            with m.If(write & self.stored.payload):
                m.d.comb += decided.status.eq(Status.MEMORY)
            with m.If(moving):
                m.d.sync += [head.eq(answer), reading.eq(read)]
        m.d.comb += [
            self.answers.ready.eq(self.answered),
            self.done.eq(self.answered & ~refused),
        ]
        m.d.sync += [making.eq(decided), stepped.eq(moving)]

        line: Any = data.View(
            Line, Array(Cat(channel_line) for channel_line in self.lines)[making.channel]
        )
        failed, extra = Signal(), Signal()
        failing = failed | line.error
        flit: Any = flits.i.payload
        made: Any = data.View(Head, flit.payload)
        m.d.comb += [
            hold.eq(stepped & making.data & making.last & failing),
            flits.i.valid.eq(stepped | extra),
            flit.tail.eq(extra | (making.last & ~(making.data & failing))),
        ]
        m.d.sync += extra.eq(hold)
        with m.If(extra):
            m.d.comb += flit.payload.eq(0)
        with m.Elif(making.data):
            m.d.comb += flit.payload.eq(line.data)
            with m.If(stepped):
                m.d.sync += failed.eq(failing)
        with m.Else():
            m.d.comb += [
                flit.head.eq(1),
                made.destination.eq(head.destination),
                made.source.eq(self.node),
                made.operation.eq(head.operation),
                made.status.eq(making.status),
                made.tag.eq(head.tag),
                made.lines.eq(head.lines),
                made.address.eq(head.address),
            ]
            m.d.sync += failed.eq(0)

        events: Any = self.events
        m.d.comb += [
            events.request.eq(self.answered),
            events.line_read.eq(moving & reading),
            events.refused.eq(
                Mux(stepped & ~making.data & (making.status != Status.OK), 1 << making.status, 0)
                | (extra << Status.MEMORY)
            ),
        ]
        return m
