"""Sum issue: the order in which a bank's lanes add up products."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import carry, delayed_pulse, wire
from hw.pim.bank.buffer.interface import RESULT_FRAMES
from hw.pim.bank.buffer.result_frames import frame_entry_layout
from hw.pim.bank.units.lane import ADD_CYCLES, RING_ROUNDS, Addend, Augend, LaneGeometry
from hw.pim.bank.units.lane_spread import SPREAD, turn
from hw.pim.bank.units.product_issue import sums_layout
from hw.pim.work.layouts import INTERLEAVE, LANE_BITS, Jobs, Second

__all__ = ["Destination", "RoundIssue", "TreeSequencer", "round_layout"]

_RING_BITS = (RING_ROUNDS - 1).bit_length()
_LEVEL_BITS = 5


class Destination(enum.Enum, shape=2):
    """Destination of a round's sums."""

    PARTIAL = 0
    """Operand of the next round."""
    SUM = 1
    """Memory of sums, for a later round."""
    RESULT = 2
    """Result buffer."""


def _place_layout() -> data.StructLayout:
    """Return the layout of a place in the memory of sums.

    It is a level of the chunk's tree if ``local``, else a level of the result's own state.
    """
    return data.StructLayout({"local": 1, "level": _LEVEL_BITS})


def round_layout() -> data.StructLayout:
    """Return the layout of a round of additions, one for each of eight results."""
    return data.StructLayout(
        {
            "augend": Augend,
            "addend": Addend,
            # The round of products to read in each half of the ring.
            "even": _RING_BITS - 1,
            "odd": _RING_BITS - 1,
            "read": _place_layout(),
            "destination": Destination,
            "write": _place_layout(),
            # The round counts as additions; not if the adder only moves values.
            "counts": 1,
            # Rounds of products that this round uses for the last time.
            "frees": 2,
            "frame": range(RESULT_FRAMES),
            # Number in the tile of the first of its second vectors, and the count of these vectors.
            "second": 12,
            "seconds": 4,
            "spread": SPREAD,
        }
    )


class TreeSequencer(wiring.Component):
    """Converter of a job's reductions into rounds of additions.

    It takes the products of each result in order. Product tau of a channel, counted from 0, closes
    one subtree for each one bit at the end of tau. For each of these levels, from below, the sum
    so far is added to the level's sum. The total becomes the sum of the next level. The first
    level is read from the ring. The channel's last product closes all open levels, and its sum is
    added to the running sum over the channels.

    A round takes three cycles at most. A channel's last product takes one more for each level that
    is not open.

    Members
    -------
    work : In(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
    job : In(stream of :func:`~hw.pim.bank.units.product_issue.sums_layout`)
    produced : In(1)
        Pulse: a round of products begins to arrive in the ring.
    frame_free : In(1)
    frame : In(range(RESULT_FRAMES))
        Whether there is a free frame in the result buffer, and the next frame's number.
    frame_taken : Out(1)
    entry : Out(stream of :func:`~hw.pim.bank.buffer.result_frames.frame_entry_layout`)
        With ``frame_taken``: the frame's contents. ``ready`` is ignored.
    round : Out(stream of :func:`round_layout`)
    busy : Out(1)
        A job is at work.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        super().__init__(
            {
                "work": In(jobs.work),
                "job": In(stream.Signature(sums_layout(jobs))),
                "produced": In(1),
                "frame_free": In(1),
                "frame": In(range(RESULT_FRAMES)),
                "frame_taken": Out(1),
                "entry": Out(stream.Signature(frame_entry_layout(jobs))),
                "round": Out(stream.Signature(round_layout())),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        job = Signal(sums_layout(self._jobs))
        base, left = Signal(12), Signal(self._jobs.k_bits)
        tau, channel, last = Signal(32), Signal(16), Signal()
        next_base = wire(m, (base + (INTERLEAVE >> job.spread.interleave))[:12], "next_base")
        available = Signal(range(RING_ROUNDS + 1))
        begin, levels, done = Signal(), Signal(), Signal()
        m.d.sync += available.eq(available + self.produced - begin)

        with m.FSM(name="state") as state:
            with m.State("JOB"):
                m.d.comb += self.job.ready.eq(1)
                m.d.sync += [
                    job.eq(self.job.payload),
                    base.eq(0),
                    left.eq(self.job.payload.length),
                    tau.eq(self.job.payload.tap),
                    channel.eq(self.job.payload.channel),
                ]
                with m.If(self.job.valid):
                    m.next = "PRODUCT"
            with m.State("PRODUCT"):
                m.d.comb += begin.eq(available != 0)
                m.d.sync += last.eq(tau + 1 == self.work.taps)
                with m.If(begin):
                    m.next = "LEVELS"
            with m.State("LEVELS"):
                m.d.comb += levels.eq(1)
                with m.If(done):
                    m.next = "NEXT"
            with m.State("NEXT"):
                m.d.sync += [
                    left.eq(left - 1),
                    tau.eq(Mux(last, 0, tau + 1)),
                    channel.eq(channel + last),
                ]
                m.next = "PRODUCT"
                with m.If(left == 1):
                    m.d.sync += [
                        base.eq(next_base),
                        left.eq(job.length),
                        tau.eq(job.tap),
                        channel.eq(job.channel),
                    ]
                    with m.If(next_base >= job.second_count):
                        m.next = "JOB"
        m.d.comb += self.busy.eq(~state.ongoing("JOB"))

        entry = self.entry.payload
        seconds = wire(m, (job.second_count - base)[:12], "seconds_left")
        whole = wire(m, Const(INTERLEAVE, 4) >> job.spread.interleave, "seconds_together")
        m.d.comb += [
            self.round.payload.frame.eq(self.frame),
            self.round.payload.second.eq(job.second + base),
            self.round.payload.seconds.eq(Mux(seconds < whole, seconds, whole)),
            self.round.payload.spread.eq(job.spread),
            self.entry.valid.eq(self.frame_taken),
            entry.frame.eq(self.frame),
            entry.index.eq(self.round.payload.second),
            entry.length.eq(self.round.payload.seconds),
            entry.vectors.eq(job.first_count),
            entry.interleave.eq(job.spread.interleave),
            entry.address.eq(job.address),
            entry.line_left.eq(job.line_left),
        ]
        self._levels(m, begin, levels, done, tau, last, channel)
        return m

    def _levels(
        self, m: Any, begin: Any, levels: Any, done: Any, tau: Any, last: Any, channel: Any
    ) -> None:
        """Offer the rounds of a product while ``levels``, until ``done``.

        ``begin`` is high in the cycle before. ``tau``, ``last`` and ``channel`` describe the
        product.
        """
        work, round = self.work, self.round.payload
        # Bits of tau from the level up; no round offered yet; place in the ring.
        bits, level = Signal(32), Signal(_LEVEL_BITS)
        fresh, place = Signal(), Signal(_RING_BITS)
        above = wire(m, bits[1:].any(), "above")
        first_channel = wire(m, channel == 0, "first_channel")
        last_channel = wire(m, channel + 1 == work.channels, "last_channel")

        closes = bits[0]
        finishes = wire(m, last & ~above & ~closes & (fresh | ~first_channel), "finishes")
        skips = last & above & ~closes
        ends = wire(m, finishes | (last & ~above & first_channel), "ends")
        is_round = wire(m, closes | finishes, "is_round")
        is_result = ends & last_channel
        moved = wire(m, self.round.valid & self.round.ready, "moved")
        m.d.comb += [
            self.round.valid.eq(levels & is_round & (~is_result | self.frame_free)),
            self.frame_taken.eq(moved & is_result),
            done.eq(Mux(is_round, moved & (ends | (~last & ~bits[1])), ~skips)),
        ]
        with m.If(begin):
            m.d.sync += [bits.eq(tau), level.eq(0), fresh.eq(1)]
        with m.Elif(levels & (moved | skips)):
            m.d.sync += [bits.eq(bits >> 1), level.eq(level + 1), fresh.eq(fresh & ~moved)]
        with m.If(done & levels):
            m.d.sync += place.eq(place + 1)

        pair = wire(m, closes & fresh & (level == 0), "pair")
        parity = place[0]
        running = (1 << work.plan.levels[:3]) - 1

        def kept(level: Any, chunk: Any) -> list[Any]:
            local = level < chunk
            return [local, Mux(local, level, level - chunk)[:_LEVEL_BITS]]

        chunk = work.plan.chunk
        m.d.comb += [
            round.augend.eq(
                Mux(fresh, Mux(parity & ~pair, Augend.ODD, Augend.EVEN), Augend.PARTIAL)
            ),
            round.even.eq(place[1:]),
            round.odd.eq(place[1:] - ~parity),
            round.frees.eq(Mux(pair, 2, fresh)),
            round.counts.eq(closes | ~first_channel),
        ]
        with m.If(pair):
            m.d.comb += round.addend.eq(Addend.ODD)
        with m.Elif(closes | ~first_channel):
            m.d.comb += round.addend.eq(Addend.SUM)
        with m.Else():
            m.d.comb += round.addend.eq(Addend.OUTSIDE)
        with m.If(closes):
            m.d.comb += Cat(round.read.local, round.read.level).eq(Cat(*kept(level, chunk)))
        with m.Else():
            m.d.comb += round.read.level.eq(running)
        with m.If(is_result):
            m.d.comb += round.destination.eq(Destination.RESULT)
        with m.Elif(ends):
            m.d.comb += [round.destination.eq(Destination.SUM), round.write.level.eq(running)]
        with m.Elif(last | bits[1]):
            m.d.comb += round.destination.eq(Destination.PARTIAL)
        with m.Else():
            m.d.comb += [
                round.destination.eq(Destination.SUM),
                Cat(round.write.local, round.write.level).eq(Cat(*kept(level + 1, chunk))),
            ]


class RoundIssue(wiring.Component):
    """Issuer of rounds of additions to the lanes, eight cycles each, one after the other.

    A round may use the sums of the previous round.

    Members
    -------
    work : In(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
    round : In(stream of :func:`round_layout`)
    ring_freed : Out(2)
        Rounds of products that the round that begins uses for the last time. New products may
        replace them in turn, from five cycles later on.
    control : Out(:attr:`LaneGeometry.control <hw.pim.bank.units.lane.LaneGeometry.control>`)
        The fields for additions; the others are 0.
    additions : Out(LANE_BITS + 1)
        Additions begun in this cycle.
    result : Out(``enable``, ``frame``, ``index``, ``last``)
        With ``enable``, the lanes' sums are results: number ``index`` of each lane, for ``frame``.
        ``last`` marks the last of the frame.
    busy : Out(1)
        A round is at work; its sums appear up to 16 cycles later.
    """

    def __init__(self, jobs: Jobs, *, multipliers: int, adders: int) -> None:
        self._lanes = min(multipliers, adders)
        self._adders = adders
        self._geometry = LaneGeometry(jobs.config)
        super().__init__(
            {
                "work": In(jobs.work),
                "round": In(stream.Signature(round_layout())),
                "ring_freed": Out(2),
                "control": Out(self._geometry.control),
                "additions": Out(LANE_BITS + 1),
                "result": Out(
                    data.StructLayout(
                        {"enable": 1, "frame": range(RESULT_FRAMES), "index": 3, "last": 1}
                    )
                ),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        work, plan = self.work, self.work.plan
        # The present round, and the one that follows.
        present, following = Signal(round_layout()), Signal(round_layout())
        busy, waits = Signal(), Signal()
        rho = Signal(range(INTERLEAVE))
        start = wire(m, waits & (~busy | (rho == INTERLEAVE - 1)), "start")
        m.d.comb += [
            self.busy.eq(busy | waits),
            self.round.ready.eq(~waits | start),
            self.ring_freed.eq(Mux(start, following.frees, 0)),
        ]
        with m.If(self.round.ready):
            m.d.sync += waits.eq(self.round.valid)
            with m.If(self.round.valid):
                m.d.sync += following.eq(self.round.payload)
        m.d.sync += rho.eq(Mux(busy, rho + 1, 0))
        with m.If(start):
            m.d.sync += [present.eq(following), busy.eq(1)]
        with m.Elif(rho == INTERLEAVE - 1):
            m.d.sync += busy.eq(0)

        lanes = Mux(work.second_kind == Second.NONE, self._adders, self._lanes)
        first, second, active, count = turn(m, "sum", present.spread, rho, lanes)
        live = delayed_pulse(m, busy & active & (second < present.seconds), 1, "live")
        ends = delayed_pulse(
            m,
            busy & (rho == INTERLEAVE - 1) & (present.destination == Destination.RESULT),
            2 + ADD_CYCLES,
            "ends",
        )
        followed = ("augend", "addend", "even", "odd", "frame")
        turned = carry(
            m,
            1,
            "turned",
            busy=busy,
            rho=rho,
            first=first,
            second=(present.second + second)[:12],
            count=count,
            **{
                name: Value.cast(present[name])
                for name in (*followed, "read", "write", "destination", "counts")
            },
        )
        # A result's state begins at a multiple of its size in places.
        state = wire(
            m,
            ((turned.second << plan.depth | turned.first) << plan.levels[:3])[
                : self._geometry.half_bits
            ],
            "state",
        )
        placed = carry(
            m,
            1,
            "placed",
            **{name: getattr(turned, name) for name in ("busy", "rho", *followed)},
            read=self._sum_place(turned.read, turned.rho, state),
            write=self._sum_place(turned.write, turned.rho, state),
            # Only live turns write: without a result the place belongs to another one, or to none.
            partial=live & (turned.destination == Destination.PARTIAL.value),
            sum=live & (turned.destination == Destination.SUM.value),
        )
        is_result = live & (turned.destination == Destination.RESULT.value)
        chosen = carry(m, 1, "chosen", augend=placed.augend, addend=placed.addend)
        sums = carry(
            m,
            ADD_CYCLES,
            "sums",
            **{name: getattr(placed, name) for name in ("rho", "write", "partial", "sum", "frame")},
        )
        m.d.sync += self.additions.eq(Mux(live & turned.counts, turned.count, 0))
        control = self.control
        m.d.comb += [
            control.read.eq(placed.busy),
            control.even_place.eq(Cat(placed.rho, placed.even)),
            control.odd_place.eq(Cat(placed.rho, placed.odd)),
            control.partial_place.eq(placed.rho),
            control.sum_place.eq(placed.read),
            control.augend.eq(chosen.augend),
            control.addend.eq(chosen.addend),
            control.partial_write.eq(sums.partial),
            control.partial_write_place.eq(sums.rho),
            control.sum_write.eq(sums.sum),
            control.sum_write_place.eq(sums.write),
            self.result.enable.eq(delayed_pulse(m, is_result, 1 + ADD_CYCLES, "is_result")),
            self.result.frame.eq(sums.frame),
            self.result.index.eq(sums.rho),
            self.result.last.eq(ends),
        ]
        return m

    def _sum_place(self, place: Any, rho: Any, state: Any) -> Any:
        """Return the address in the memory of sums of a ``place`` for result ``rho``.

        ``place`` has :func:`_place_layout`.
        """
        local, level = place[0], place[1:]
        bits = self._geometry.half_bits
        return Cat(Mux(local, Cat(rho, level), state | level)[:bits], local)
