"""Intake that takes the requests of a link and checks them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.counter import step
from hw.logic.line import LINE_BITS, LINE_BYTE_BITS
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import PACKET_LINES, Flit, FlitStream, Head, Operation, Status
from hw.memory_node.group.layouts import ADDRESS_LINE_BITS, Allocation, Answer, Job
from hw.memory_node.group.packet_buffer import PacketBuffer
from hw.stream.fifo import StreamFifo

__all__ = ["Intake"]


class Intake(wiring.Component):
    """Requests as they come in, each with how it stands; one flit a cycle.

    A request is checked when its last flit has arrived. Until then its data is held back, and the
    data of a refused request never comes out.

    Members
    -------
    node, allocation : In(8), In(:data:`~hw.memory_node.group.layouts.Allocation`)
        May change only while nothing is under way.
    i : In(FlitStream)
        Requests for the group.
    answered : In(1)
        Pulse: the answer to a request has gone; at most ``config.requests`` are without one.
    answers : Out(stream of :data:`~hw.memory_node.group.layouts.Answer`)
        One for each request.
    jobs : Out(stream of :class:`~hw.memory_node.group.layouts.Job`)
        One for each that is not refused.
    lines : Out(stream of lines)
        The data of all writes of ``jobs``.
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        super().__init__(
            {
                "node": In(8),
                "allocation": In(Allocation),
                "i": In(FlitStream),
                "answered": In(1),
                "answers": Out(stream.Signature(Answer)),
                "jobs": Out(stream.Signature(Job(config))),
                "lines": Out(stream.Signature(LINE_BITS)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        depth = config.requests
        m.submodules.answers = answers = StreamFifo(shape=Answer, depth=depth, early=True)
        m.submodules.jobs = jobs = StreamFifo(shape=Job(config), depth=depth, early=True)
        m.submodules.buffer = buffer = PacketBuffer(depth=config.write_buffer_lines)
        for inner, outer in (
            (answers.o, self.answers),
            (jobs.o, self.jobs),
            (buffer.o, self.lines),
        ):
            wiring.connect(m, inner, wiring.flipped(outer))

        # A flit is taken into a register and examined in the next cycle.
        flit = Signal(Flit, reset_less=True)
        held = Signal()
        done = Signal()
        free = Signal(range(depth + 1), init=depth)
        arriving = Signal()
        first = Signal()
        taken = Signal()
        offered: Any = self.i.payload
        m.d.comb += [
            first.eq(~arriving & offered.head),
            self.i.ready.eq((~held | done) & (~first | (free != 0))),
            taken.eq(self.i.valid & self.i.ready),
        ]
        # Flits before a head belong to no packet.
        kept = taken & (arriving | first)
        with m.If(kept):
            m.d.sync += [flit.eq(offered), held.eq(1), arriving.eq(~offered.tail)]
        with m.Elif(done):
            m.d.sync += held.eq(0)
        step(m, free, up=self.answered, down=taken & first)

        inside = Signal()
        head = Signal(Head, reset_less=True)
        lines = Signal(range(2 * PACKET_LINES))
        misplaced = Signal()
        fits = Signal()
        closing = Signal()
        storing = Signal()
        new: Any = data.View(Head, flit.payload)
        new_line = Signal(ADDRESS_LINE_BITS)
        new_lines = Signal(range(PACKET_LINES + 1))
        place = Signal(range(config.group_bytes >> LINE_BYTE_BITS), reset_less=True)
        allocation: Any = self.allocation
        m.d.comb += [
            storing.eq(inside & (lines < PACKET_LINES)),
            done.eq(held & (~storing | buffer.room)),
            buffer.line.eq(flit.payload),
            buffer.put.eq(held & storing & buffer.room),
            new_line.eq(new.address[LINE_BYTE_BITS:]),
            new_lines.eq(new.lines),
        ]
        m.d.sync += closing.eq(done & flit.tail)
        with m.If(done):
            m.d.sync += inside.eq(~flit.tail)
            with m.If(inside):
                m.d.sync += misplaced.eq(misplaced | flit.head)
                with m.If(lines != 2 * PACKET_LINES - 1):
                    m.d.sync += lines.eq(lines + 1)
            with m.Else():
                m.d.sync += [
                    head.eq(new),
                    lines.eq(0),
                    misplaced.eq(0),
                    fits.eq(new_line + new_lines <= allocation.size),
                    place.eq(allocation.base + new_line),
                ]

        # The packet is complete, and the next one has no data here yet.
        write = head.operation == Operation.WRITE
        read = head.operation == Operation.READ
        own = head.destination == self.node
        malformed = (
            misplaced
            | (lines != Mux(write, head.lines, 0))
            | (head.lines == 0)
            | (head.lines > PACKET_LINES)
            | head.address[:LINE_BYTE_BITS].any()
        )
        # An allocation that ends beyond the group's memory is invalid as a whole.
        exists = Signal()
        end = allocation.base + allocation.size
        m.d.sync += exists.eq(end <= config.group_bytes >> LINE_BYTE_BITS)
        status = Signal(Answer["status"].shape)
        with m.If(~own | ~(read | write)):
            m.d.comb += status.eq(Status.OPERATION)
        with m.Elif(head.source != allocation.owner):
            m.d.comb += status.eq(Status.OWNER)
        with m.Elif(malformed):
            m.d.comb += status.eq(Status.FORMAT)
        with m.Elif(~fits | ~exists):
            m.d.comb += status.eq(Status.BOUNDS)
        answer: Any = answers.i.payload
        m.d.comb += [
            answers.i.valid.eq(closing),
            answer.operation.eq(
                Mux(
                    read,
                    Operation.READ_DATA,
                    Mux(write, Operation.WRITE_DONE, Operation.REFUSED),
                )
            ),
            answer.status.eq(status),
            answer.destination.eq(head.source),
            Cat(answer.tag, answer.lines, answer.address).eq(
                Cat(head.tag, head.lines, head.address)
            ),
            jobs.i.valid.eq(closing & (status == Status.OK)),
            jobs.i.payload.write.eq(write),
            jobs.i.payload.line.eq(place),
            jobs.i.payload.lines.eq(head.lines),
            buffer.keep.eq(closing & (status == Status.OK)),
            buffer.drop.eq(closing & (status != Status.OK)),
        ]
        return m
