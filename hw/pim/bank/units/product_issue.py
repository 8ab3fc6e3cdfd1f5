"""Product issue: the order in which a bank's lanes get factors."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import fit, wire
from hw.pim.bank.buffer.interface import GROUP_BITS, RESULT_FRAMES, RESULT_INDEX_BITS
from hw.pim.bank.buffer.result_frames import frame_entry_layout
from hw.pim.bank.units.lane import RING_ROUNDS
from hw.pim.bank.units.lane_spread import SPREAD, spread_of, turn
from hw.pim.work.layouts import INTERLEAVE, LANE_BITS, Jobs, OperandBuffer, Second

__all__ = ["ProductIssue", "factors_layout", "sums_layout"]


def factors_layout(jobs: Jobs) -> data.StructLayout:
    """Return the layout of a cycle's reads from the operand buffers."""
    return data.StructLayout(
        {
            # The cycle belongs to a round.
            "round": 1,
            # There is something to read.
            "enable": 1,
            "halves": len(OperandBuffer),
            # Group of the first vectors; number of a shared second vector in the buffer.
            "group": GROUP_BITS,
            "second": GROUP_BITS + 3,
            "k": jobs.k_bits,
            # Lanes with a product; elementwise, results.
            "count": LANE_BITS + 1,
            # Buffers with a half that is used for the last time.
            "release": len(OperandBuffer),
            # Elementwise: the frame, and whether it ends here.
            "frame": range(RESULT_FRAMES),
            "frame_last": 1,
        }
    )


def sums_layout(jobs: Jobs) -> data.StructLayout:
    """Return the layout of the fields of a job that its sums need."""
    fields = jobs.compute.members
    names = (
        *("length", "channel", "tap", "first_count", "second", "second_count"),
        *("address", "line_left"),
    )
    return data.StructLayout({**{name: fields[name] for name in names}, "spread": SPREAD})


class ProductIssue(wiring.Component):
    """Issuer of factors: walks over the elements of one job after the other.

    A reduction runs in rounds of eight cycles: one element of eight results each. A round begins
    when the ring has room for its products. An elementwise job issues ``elements`` elements a
    cycle; the first of each result frame waits for a free frame. Rounds, groups and jobs follow
    each other without an idle cycle.

    Members
    -------
    work : In(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
    job : In(stream of :attr:`Jobs.compute <hw.pim.work.layouts.Jobs.compute>`)
    sums : Out(stream of :func:`sums_layout`)
        Fields of a reduction, when it begins.
    ring_freed : In(2)
        Rounds of products that are no longer needed.
    frame_free : In(1)
    frame : In(range(RESULT_FRAMES))
        Whether there is a free frame, and the next frame's number.
    frame_taken : Out(1)
    entry : Out(stream of :func:`~hw.pim.bank.buffer.result_frames.frame_entry_layout`)
        Contents of an elementwise job's frame, with its last element. ``ready`` is ignored.
    factors : Out(:func:`factors_layout`)
    busy : Out(1)
    """

    def __init__(self, jobs: Jobs, *, multipliers: int, adders: int, elements: int) -> None:
        self._jobs = jobs
        self._lanes = min(multipliers, adders)
        self._adders = adders
        self._elements = elements
        super().__init__(
            {
                "work": In(jobs.work),
                "job": In(stream.Signature(jobs.compute)),
                "sums": Out(stream.Signature(sums_layout(jobs))),
                "ring_freed": In(2),
                "frame_free": In(1),
                "frame": In(range(RESULT_FRAMES)),
                "frame_taken": Out(1),
                "entry": Out(stream.Signature(frame_entry_layout(jobs))),
                "factors": Out(factors_layout(jobs)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        jobs, elementwise = self._jobs, self.work.elementwise
        job = Signal(jobs.compute)
        spread = Signal(SPREAD)
        busy = Signal()
        go, end = Signal(), Signal()
        k, next_k = Signal(jobs.k_bits), Signal(jobs.k_bits)
        ended = Signal()

        m.d.comb += [self.busy.eq(busy), ended.eq(go & end)]
        self._take(m, job, spread, busy, ended)

        factors = Signal(factors_layout(jobs))
        m.d.comb += [
            factors.halves.eq(job.halves),
            factors.k.eq(k),
            factors.frame.eq(self.frame),
        ]
        with m.If(ended):
            m.d.comb += factors.release.eq(job.release)
        with m.If(go):
            m.d.sync += k.eq(next_k)
        with m.If(elementwise):
            self._elementwise(m, job, busy, k, go, end, next_k, factors)
        with m.Else():
            self._reduction(m, job, spread, busy, k, go, end, next_k, factors)
        # Registers of invalid fields keep their values.
        m.d.sync += [
            self.factors.round.eq(factors.round),
            self.factors.enable.eq(factors.enable),
            self.factors.release.eq(factors.release),
        ]
        with m.If(factors.enable):
            for name, _ in factors_layout(jobs):
                if name not in ("round", "enable", "release"):
                    m.d.sync += self.factors[name].eq(factors[name])
        return m

    def _take(self, m: Any, job: Any, spread: Any, busy: Any, ended: Any) -> None:
        """Take a job when there is none, or the last one ends."""
        elementwise = self.work.elementwise
        offered = self.job.payload
        room = wire(m, ~busy | ended, "room")
        sums = self.sums.payload
        m.d.comb += [
            self.job.ready.eq(room & (elementwise | self.sums.ready)),
            self.sums.valid.eq(room & self.job.valid & ~elementwise),
            *(
                sums[name].eq(offered[name])
                for name, _ in sums_layout(self._jobs)
                if name != "spread"
            ),
        ]
        alone = self.work.second_kind == Second.NONE
        pairs = spread_of(offered.first_count, lanes=self._lanes)
        alones = spread_of(offered.first_count, lanes=self._adders)
        for name, value in pairs.items():
            m.d.comb += sums.spread[name].eq(Mux(alone, alones[name], value))
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += [busy.eq(1), job.eq(offered), spread.eq(sums.spread)]
        with m.Elif(ended):
            m.d.sync += busy.eq(0)

    def _elementwise(
        self, m: Any, job: Any, busy: Any, k: Any, go: Any, end: Any, next_k: Any, factors: Any
    ) -> None:
        elements = self._elements
        left = wire(m, (job.length - k)[: len(k)], "left")
        begins = wire(m, k[:RESULT_INDEX_BITS] == 0, "frame_begins")
        fills = k[:RESULT_INDEX_BITS] == (1 << RESULT_INDEX_BITS) - elements
        entry = self.entry.payload
        values = {
            "frame": self.frame,
            "index": k & ~((1 << RESULT_INDEX_BITS) - 1),
            "length": k[:RESULT_INDEX_BITS] + factors.count,
            "vectors": 1,
            "interleave": 0,
            "address": job.address,
            "line_left": job.line_left,
        }
        fields = [fit(Value.cast(values[name]), field.width) for name, field in entry.shape()]
        m.d.comb += [
            go.eq(busy & (~begins | self.frame_free)),
            end.eq(left <= elements),
            next_k.eq(Mux(end, 0, k + elements)),
            factors.enable.eq(go),
            factors.count.eq(Mux(end, left, elements)),
            factors.frame_last.eq(end | fills),
            self.frame_taken.eq(go & factors.frame_last),
            self.entry.valid.eq(self.frame_taken),
            # One assignment: a constant field by itself would be a process that nothing triggers.
            entry.as_value().eq(Cat(*fields)),
        ]

    def _reduction(
        self,
        m: Any,
        job: Any,
        spread: Any,
        busy: Any,
        k: Any,
        go: Any,
        end: Any,
        next_k: Any,
        factors: Any,
    ) -> None:
        rho = Signal(range(INTERLEAVE))
        ring_free = Signal(range(RING_ROUNDS + 1), init=RING_ROUNDS)
        base, next_base = Signal(12), Signal(12)
        lanes = Mux(self.work.second_kind == Second.NONE, self._adders, self._lanes)
        first, second, active, count = turn(m, "product", spread, rho, lanes)
        number = wire(m, (base + second)[:12], "number")
        begin = go & (rho == 0)
        round_ends = wire(m, rho == INTERLEAVE - 1, "round_ends")
        last_element = wire(m, k + 1 == job.length, "last_element")
        m.d.comb += [
            go.eq(busy & ((rho != 0) | (ring_free != 0))),
            next_base.eq(base + (INTERLEAVE >> spread.interleave)),
            end.eq(round_ends & last_element & (next_base >= job.second_count)),
            next_k.eq(Mux(round_ends, Mux(last_element, 0, k + 1), k)),
            factors.round.eq(go),
            factors.enable.eq(go & active & (number < job.second_count)),
            factors.group.eq(first),
            factors.second.eq(number[: GROUP_BITS + 3]),
            factors.count.eq(count),
        ]
        m.d.sync += ring_free.eq(ring_free + self.ring_freed - begin)
        with m.If(go):
            m.d.sync += rho.eq(rho + 1)
            with m.If(round_ends & last_element):
                m.d.sync += base.eq(Mux(end, 0, next_base))
