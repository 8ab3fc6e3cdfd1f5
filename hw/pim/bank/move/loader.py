"""Loader: reads operands from memory into the buffers of a bank."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.float.parts import hold, wire
from hw.pim.bank.buffer.buffers import OperandWriteSignature
from hw.pim.bank.move.bank_port import READ_TAG_BITS, read_request_layout, read_response_layout
from hw.pim.bank.move.walker import Walker
from hw.pim.config import PimConfig
from hw.pim.work.layouts import BEAT_WORDS, Jobs, OperandBuffer

__all__ = ["Loader"]

_JOB_BITS = 2


class _Tags:
    """Free list of read tags; unused tags go out first, then returned ones."""

    def __init__(self, m: Any, *, take: Any, give: Any, given: Any) -> None:
        count = 1 << READ_TAG_BITS
        m.submodules.tags = queue = SyncFIFO(width=READ_TAG_BITS, depth=count)
        fresh = Signal(range(count + 1))
        unused = wire(m, fresh != count, "unused")
        self.tag = wire(m, Mux(unused, fresh[:READ_TAG_BITS], queue.r_data), "tag")
        self.available = wire(m, unused | queue.r_rdy, "available")
        m.d.comb += [queue.w_en.eq(give), queue.w_data.eq(given), queue.r_en.eq(take & ~unused)]
        m.d.sync += fresh.eq(fresh + (take & unused))


class Loader(wiring.Component):
    """Reader of the elements of walks, which it writes into the buffers.

    It handles one segment a cycle: a read request, or a write of zeros for padding. Zeros wait
    while a response is there. Up to 32 reads and four jobs are in flight, and reads are issued in
    the order of the jobs. Responses may come in any order. The first request comes seven cycles
    after the job.

    Members
    -------
    i : In(stream of :attr:`Jobs.load <hw.pim.work.layouts.Jobs.load>`)
        Loads to do; the buffer half of a load must be free.
    request : Out(stream of :func:`~hw.pim.bank.move.bank_port.read_request_layout`)
    response : In(stream of :func:`~hw.pim.bank.move.bank_port.read_response_layout`)
        ``ready`` is always 1.
    write : Out(:class:`~hw.pim.bank.buffer.buffers.OperandWriteSignature`)
    done : Out(1)
        Pulse, in the order of the jobs: all of the job's elements can be read from buffer
        ``done_buffer``.
    done_buffer : Out(:class:`~hw.pim.work.layouts.OperandBuffer`)
    idle : Out(1)
        All jobs that were taken are done.
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        jobs = Jobs(config)
        super().__init__(
            {
                "i": In(stream.Signature(jobs.load)),
                "request": Out(stream.Signature(read_request_layout(config))),
                "response": In(stream.Signature(read_response_layout())),
                "write": Out(OperandWriteSignature(jobs)),
                "done": Out(1),
                "done_buffer": Out(OperandBuffer),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        context = data.StructLayout({"buffer": OperandBuffer, "half": 1, "job": _JOB_BITS})
        m.submodules.walker = walker = Walker(self._config, context_bits=context.size)
        o = walker.o.payload
        read = Signal()
        answer = self.response.payload
        tags = _Tags(m, take=read, give=self.response.valid, given=answer.tag)
        zero = o.segment.zero
        m.d.comb += [
            self.response.ready.eq(1),
            self.request.valid.eq(walker.o.valid & ~zero & tags.available),
            self.request.payload.address.eq(o.segment.address[BEAT_WORDS.bit_length() - 1 :]),
            self.request.payload.tag.eq(tags.tag),
            read.eq(self.request.valid & self.request.ready),
            walker.o.ready.eq(Mux(zero, ~self.response.valid, tags.available & self.request.ready)),
        ]
        # Segments whose reads are in flight, by tag.
        m.submodules.pending = pending = memory.Memory(
            shape=o.shape(), depth=1 << READ_TAG_BITS, init=[]
        )
        put, get = pending.write_port(), pending.read_port(domain="comb")
        written = Signal(o.shape())
        walked, of_written = (data.View(context, item.context) for item in (o, written))
        m.d.comb += [
            put.addr.eq(tags.tag),
            put.data.eq(o),
            put.en.eq(read),
            get.addr.eq(answer.tag),
            written.eq(Mux(self.response.valid, get.data.as_value(), o.as_value())),
            self.write.enable.eq(self.response.valid | (walker.o.valid & zero)),
            self.write.buffer.eq(of_written.buffer),
            self.write.half.eq(of_written.half),
            self.write.segment.eq(written.segment),
            self.write.data.eq(answer.data),
        ]
        ended = walker.o.valid & walker.o.ready & o.segment.last
        self._account(m, walker, read, walked.job, of_written.job, ended)
        return m

    def _account(
        self, m: Any, walker: Any, read: Any, read_job: Any, answered_job: Any, ended: Any
    ) -> None:
        """Count each job's unanswered reads and signal ``done`` when it has no more of them."""
        count = 1 << _JOB_BITS
        oldest, next_job = Signal(_JOB_BITS), Signal(_JOB_BITS)
        level = Signal(range(count + 1))
        ready, all_read = [], Signal(count)
        accept, done = Signal(), Signal()
        offered = self.i.payload.buffer
        buffers = Array(
            hold(m, accept & (next_job == job), f"job_{job}", buffer=offered).buffer
            for job in range(count)
        )
        m.d.comb += [
            walker.i.valid.eq(self.i.valid & (level != count)),
            self.i.ready.eq(walker.i.ready & (level != count)),
            walker.i.payload.eq(self.i.payload.walk),
            walker.context.eq(Cat(self.i.payload.buffer, self.i.payload.half, next_job)),
            accept.eq(self.i.valid & self.i.ready),
            self.idle.eq(level == 0),
        ]
        for job in range(count):
            reads = Signal(range((1 << READ_TAG_BITS) + 1), name=f"reads_{job}")
            more = read & (read_job == job)
            fewer = self.response.valid & (answered_job == job)
            m.d.sync += reads.eq(reads + more - fewer)
            ready.append(all_read[job] & (reads == 0))
            with m.If(ended & (read_job == job)):
                m.d.sync += all_read[job].eq(1)
            with m.Elif(done & (oldest == job)):
                m.d.sync += all_read[job].eq(0)
        m.d.comb += done.eq(Array(ready)[oldest])
        m.d.sync += [
            level.eq(level + accept - done),
            next_job.eq(next_job + accept),
            oldest.eq(oldest + done),
            self.done.eq(done),
            self.done_buffer.eq(buffers[oldest]),
        ]
