"""Storer: writes results from the result buffer of a bank to memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.checks import check_int
from hw.pim.bank.buffer.buffers import ResultBuffer
from hw.pim.bank.buffer.interface import RESULT_FRAMES, ResultWriteSignature
from hw.pim.bank.move.walker import Walker
from hw.pim.config import PimConfig
from hw.pim.memory.memory_port import write_request_layout
from hw.pim.placement import MAX_LANES
from hw.pim.work.layouts import Jobs

__all__ = ["Storer"]

_OUTSTANDING_BITS = 6


class Storer(wiring.Component):
    """Result buffer, and the writes that empty it: one for each segment, in order.

    The first request comes nine cycles after the job. Up to 32 writes are in flight.

    Parameters
    ----------
    config
        The pool.
    lanes
        Lanes of the bank, 1 to 16.

    Members
    -------
    i : In(stream of :attr:`Jobs.store <hw.pim.work.layouts.Jobs.store>`)
        Stores to do; their results must be in the buffer.
    result : In(:class:`~hw.pim.bank.buffer.interface.ResultWriteSignature`)
    request : Out(stream of :func:`~hw.pim.memory.memory_port.write_request_layout`)
    written : In(1)
        Pulse: a write has been answered.
    freed : Out(1)
        Pulse, in the order of the jobs: all of the job's writes have been issued, so that its frame
        can be used again.
    idle : Out(1)
        All jobs that were taken are done, and their writes have been answered.
    """

    def __init__(self, config: PimConfig, *, lanes: int) -> None:
        self._config = config
        check_int("lanes", lanes, 1, MAX_LANES)
        self._lanes = lanes
        super().__init__(
            {
                "i": In(stream.Signature(Jobs(config).store)),
                "result": In(ResultWriteSignature(lanes)),
                "request": Out(stream.Signature(write_request_layout(config))),
                "written": In(1),
                "freed": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.results = in_results = Module()
        results = ResultBuffer(in_results, self._config, lanes=self._lanes, write=self.result)
        job, read = self.i.payload, results.i.payload
        context = Cat(read.frame, read.linear, read.interleave)
        m.submodules.walker = walker = Walker(self._config, context_bits=len(context))
        beat, request = results.o.payload, self.request.payload
        outstanding = Signal(_OUTSTANDING_BITS)
        jobs = Signal(range(2 * RESULT_FRAMES))
        accept, issue, room = Signal(), Signal(), Signal()
        m.d.comb += [
            walker.i.valid.eq(self.i.valid),
            self.i.ready.eq(walker.i.ready),
            walker.i.payload.eq(job.walk),
            walker.context.eq(Cat(job.frame, job.linear, job.interleave)),
            results.i.valid.eq(walker.o.valid),
            walker.o.ready.eq(results.i.ready),
            read.segment.eq(walker.o.payload.segment),
            context.eq(walker.o.payload.context),
            room.eq(~outstanding[-1]),
            self.request.valid.eq(results.o.valid & room),
            results.o.ready.eq(self.request.ready & room),
            request.address.eq(beat.address),
            request.data.eq(beat.data),
            request.strobe.eq(beat.strobe),
            accept.eq(self.i.valid & self.i.ready),
            issue.eq(self.request.valid & self.request.ready),
            self.idle.eq((jobs == 0) & (outstanding == 0)),
        ]
        m.d.sync += [
            outstanding.eq(outstanding + issue - self.written),
            self.freed.eq(issue & beat.last),
            jobs.eq(jobs + accept - (issue & beat.last)),
        ]
        return m
