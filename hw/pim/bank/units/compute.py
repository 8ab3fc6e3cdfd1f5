"""Arithmetic of a bank: lanes in lockstep, from operand buffers to result buffer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import carry, delayed_pulse, wire
from hw.logic.checks import check_int
from hw.pim.bank.buffer.interface import (
    COLUMNS,
    RESULT_INDEX_BITS,
    BufferReadSignature,
    ResultWriteSignature,
)
from hw.pim.bank.buffer.result_frames import ResultFrames
from hw.pim.bank.units.lane import ADD_CYCLES, PRODUCT_CYCLES
from hw.pim.bank.units.lanes import READ_CYCLES, Lanes
from hw.pim.bank.units.product_issue import ProductIssue, sums_layout
from hw.pim.bank.units.sum_issue import RoundIssue, TreeSequencer
from hw.pim.config import PimConfig
from hw.pim.placement import MAX_LANES
from hw.pim.work.layouts import LANE_BITS, Elementwise, Jobs, OperandBuffer, Second
from hw.stream.fifo import StreamFifo

__all__ = ["Compute"]

# Cycles from the read of an elementwise operation's factors to the read of its addend, and to its
# result.
_ADDEND_CYCLES = PRODUCT_CYCLES
_RESULT_CYCLES = READ_CYCLES + PRODUCT_CYCLES + ADD_CYCLES - 1

# Cycles from a job's last read of factors until all its reads have been answered.
_RELEASE_CYCLES = _ADDEND_CYCLES + READ_CYCLES + 1

# Cycles from the last busy one until the lanes are empty.
_DRAIN_CYCLES = _RESULT_CYCLES + 2

# Maximum number of jobs between the begin of their products and that of their sums.
_JOBS = 4


class Compute(wiring.Component):
    """Multipliers and adders of a bank, in lanes that work in lockstep.

    ``L``, the number of active lanes, is the smaller of multipliers and adders; for SUM it is the
    number of adders. First vector v of a job is member v mod L of group v div L in the buffers:
    members 0 to 7 in ``first_0``, 8 and up in ``first_1``. A shared second vector s is member
    s mod 8 of group s div 8 in ``second_0``. Private second vectors lie like the first vectors.

    A reduction takes 8 cycles per element, in which each lane multiplies for up to eight results.
    Additions run beside that, in the order of the specification. A product is added 9 cycles after
    the read of its factors or later; the sum is there 7 cycles after that. Sums of a channel that
    is incomplete at the end of a job are kept for the next one. Elementwise, 4 results a cycle (2
    or 1 if L is less) appear 14 cycles after the read.

    Results go to the frames of the result buffer in turn. A frame takes the results of all first
    vectors with the second vectors of a round, or 64 results of an elementwise work. Then its store
    follows. Halves are released when all of the job's reads have been done.

    Parameters
    ----------
    config
        Sizes of buffers and state.
    multipliers, adders
        Multipliers and adders of the bank, 1 to 16 each.

    Members
    -------
    work : In(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
        Must hold still until all its jobs are done: until ``idle``.
    job : In(stream of :attr:`Jobs.compute <hw.pim.work.layouts.Jobs.compute>`)
        The operands must be in the buffers.
    first_0, second_0 (and first_1, second_1 from 9 lanes on) : \
Out(:class:`~hw.pim.bank.buffer.interface.BufferReadSignature`)
    result : Out(:class:`~hw.pim.bank.buffer.interface.ResultWriteSignature`)
    store : Out(stream of :attr:`Jobs.store <hw.pim.work.layouts.Jobs.store>`)
        The results are in the buffer. Frames come in turn: 0, 1, 2, 3, 0, ...
    frame_freed : In(1)
        Pulse: the next frame in turn has been stored.
    release : Out(2)
        Pulses: the ``release`` bits of the jobs, in their order.
    multiplications, additions : Out(LANE_BITS + 1)
        Operations of this cycle; exact over a work.
    idle : Out(1)
        All jobs that were taken are done, and their stores have been handed over. Falls in the
        cycle after a job is taken.
    """

    def __init__(self, config: PimConfig, *, multipliers: int, adders: int) -> None:
        for name, value in (("multipliers", multipliers), ("adders", adders)):
            check_int(name, value, 1, MAX_LANES)
        self._config = config
        self._jobs = jobs = Jobs(config)
        self._multipliers = multipliers
        self._adders = adders
        self._pairs = min(multipliers, adders)
        self._lanes = max(multipliers, adders)
        self._elements = next(size for size in (4, 2, 1) if size <= self._pairs)
        groups = range(-(-self._lanes // COLUMNS))
        self._reads = [f"{name}_{group}" for name in ("first", "second") for group in groups]
        super().__init__(
            {
                "work": In(jobs.work),
                "job": In(stream.Signature(jobs.compute)),
                **{name: Out(BufferReadSignature(jobs)) for name in self._reads},
                "result": Out(ResultWriteSignature(self._lanes)),
                "store": Out(stream.Signature(jobs.store)),
                "frame_freed": In(1),
                "release": Out(len(OperandBuffer)),
                "multiplications": Out(LANE_BITS + 1),
                "additions": Out(LANE_BITS + 1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        jobs, work = self._jobs, self.work
        units = {"multipliers": self._multipliers, "adders": self._adders}
        m.submodules.products = products = ProductIssue(jobs, elements=self._elements, **units)
        m.submodules.pending = pending = StreamFifo(shape=sums_layout(jobs), depth=_JOBS)
        m.submodules.tree = tree = TreeSequencer(jobs)
        m.submodules.rounds = rounds = RoundIssue(jobs, **units)
        m.submodules.frames = frames = ResultFrames(jobs, **units)
        m.submodules.lanes = lanes = Lanes(jobs, elements=self._elements, **units)

        wiring.connect(m, wiring.flipped(self.job), products.job)
        wiring.connect(m, products.sums, pending.i)
        wiring.connect(m, pending.o, tree.job)
        wiring.connect(m, tree.round, rounds.round)
        wiring.connect(m, wiring.flipped(self.store), frames.store)
        for name in self._reads:
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(lanes, name))
        entries = Mux(
            work.elementwise, products.entry.payload.as_value(), tree.entry.payload.as_value()
        )
        m.d.comb += [
            *(part.work.eq(work) for part in (products, tree, rounds, frames, lanes)),
            *(part.frame_free.eq(frames.free) for part in (products, tree)),
            *(part.frame.eq(frames.frame) for part in (products, tree)),
            frames.taken.eq(products.frame_taken | tree.frame_taken),
            frames.freed.eq(self.frame_freed),
            frames.entry.valid.eq(products.entry.valid | tree.entry.valid),
            frames.entry.payload.eq(entries),
            products.ring_freed.eq(rounds.ring_freed),
            tree.produced.eq(lanes.produced),
            lanes.factors.eq(products.factors),
            lanes.control.eq(rounds.control),
            self.result.data.eq(lanes.results),
        ]
        self._write(m, products.factors, rounds.result, frames.written)
        self._count(m, products.factors, rounds.additions)
        for buffer in OperandBuffer:
            last_use = products.factors.release[buffer.value]
            released = delayed_pulse(m, last_use, _RELEASE_CYCLES, f"released_{buffer.value}")
            m.d.comb += self.release[buffer.value].eq(released)

        # The lanes run some cycles longer than there are jobs, to drain their pipelines.
        busy = wire(m, products.busy | tree.busy | rounds.busy | (pending.level != 0), "busy")
        rest = Signal(range(_DRAIN_CYCLES + 1))
        with m.If(busy):
            m.d.sync += rest.eq(_DRAIN_CYCLES)
        with m.Elif(rest != 0):
            m.d.sync += rest.eq(rest - 1)
        m.d.comb += [
            lanes.enable.eq(busy | (rest != 0)),
            self.idle.eq(~busy & (rest == 0) & frames.idle),
        ]
        return m

    def _write(self, m: Any, factors: Any, sums: Any, written: Any) -> None:
        """Write results: elementwise ones a fixed time after the read, others as ``sums`` says."""
        elementwise, result = self.work.elementwise, self.result
        enable = delayed_pulse(m, factors.enable & elementwise, _RESULT_CYCLES, "results")
        last = delayed_pulse(
            m, factors.enable & factors.frame_last & elementwise, _RESULT_CYCLES, "frame_ends"
        )
        place = carry(
            m,
            _RESULT_CYCLES,
            "place",
            frame=factors.frame,
            index=factors.k[:RESULT_INDEX_BITS],
            count=factors.count,
        )
        lanes = Mux(self.work.second_kind == Second.NONE, self._adders, self._pairs)
        count = wire(m, Mux(elementwise, place.count, lanes), "result_lanes")
        m.d.comb += [
            written.eq(sums.last | last),
            result.enable.eq(sums.enable | enable),
            result.linear.eq(elementwise),
            result.frame.eq(Mux(elementwise, place.frame, sums.frame)),
            result.index.eq(Mux(elementwise, place.index, sums.index)),
            result.mask.eq(Cat(count > lane for lane in range(self._lanes))),
        ]

    def _count(self, m: Any, factors: Any, additions: Any) -> None:
        work, operation = self.work, self.work.operation
        count = Mux(factors.enable, factors.count, 0)
        adds = operation != Elementwise.MUL
        multiplies = Mux(
            work.elementwise, operation != Elementwise.ADD, work.second_kind != Second.NONE
        )
        m.d.comb += [
            self.multiplications.eq(Mux(multiplies, count, 0)),
            self.additions.eq(Mux(work.elementwise, Mux(adds, count, 0), additions)),
        ]
