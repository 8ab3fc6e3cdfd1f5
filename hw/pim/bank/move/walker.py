"""Walker: cuts a walk over elements into segments that fit into memory beats."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

from amaranth.hdl import C, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import hold, saturate, wire
from hw.pim.bank.move.walk_runs import RunBase, RunWalker
from hw.pim.config import PimConfig
from hw.pim.work.layouts import BEAT_WORDS, LANE_BITS, Jobs

__all__ = ["Walker", "walked_layout"]

# Fields of a run that all its segments need, and those plus the ones that only the first needs.
_SEGMENT_KEPT = ("stride", "across", "group", "context")
_KEPT = (*_SEGMENT_KEPT, "base", "distance", "member", "k", "last")


@cache
def walked_layout(config: PimConfig, context_bits: int) -> data.StructLayout:
    """Return the layout of a walk's segment and the context that came with the walk."""
    return data.StructLayout({"segment": Jobs(config).segment, "context": context_bits})


class Walker(wiring.Component):
    """Converter of walks into segments.

    The outer loop runs over vectors and the inner one over elements; ``across`` swaps the loops.

    A segment is one element, or up to eight neighbours at a constant distance of 1, -1 or 0 words.
    Neighbours are elements of a vector or, across, members 0 to 7, or 8 and up, of a group. They
    are in one memory beat, unless they are zero. A segment ends at the end of a row, of a channel
    and, across, of a line. It continues over rows and channels of an unbounded walk that follow one
    another in memory without a gap. If a bounded walk's coordinate does not grow by one from
    element to element, each element is a segment.

    It makes one segment a cycle. The first comes seven cycles after the walk. Setting up a walk
    takes five cycles, during the previous walk. No cycle is lost between two walks, or one if the
    previous walk's last segment is a run of its own.

    Parameters
    ----------
    config
        The pool.
    context_bits
        Width of the context, which accompanies every segment of a walk.

    Members
    -------
    i : In(stream of :attr:`Jobs.walk <hw.pim.work.layouts.Jobs.walk>`)
        ``vectors``, ``group_size``, ``length``, ``columns``, ``rows``, ``line`` and ``line_left``
        are 1 or more. ``group_size`` is 16 or less. ``tap_column`` and ``tap_row`` are less than
        ``columns`` and ``rows``. No coordinate is less than -2 ** 16, including those of column 0
        and row 0 in every line.
    context : In(context_bits)
        Context of the walk that is taken in this cycle.
    o : Out(stream of :func:`walked_layout`)
        The address of a segment with ``zero`` is arbitrary.
    """

    def __init__(self, config: PimConfig, *, context_bits: int) -> None:
        self._config = config
        self._jobs = Jobs(config)
        self._context_bits = context_bits
        super().__init__(
            {
                "i": In(stream.Signature(self._jobs.walk)),
                "context": In(context_bits),
                "o": Out(stream.Signature(walked_layout(config, context_bits))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.runs = runs = RunWalker(self._config, context_bits=self._context_bits)
        wiring.connect(m, wiring.flipped(self.i), runs.i)
        m.d.comb += runs.context.eq(self.context)
        self._segments(m, self._parts(m, runs.o))
        return m

    def _parts(self, m: Any, runs: Any) -> Any:
        """Cut runs at the image's borders; return the signals of a part, with a handshake."""
        k_bits = self._jobs.k_bits
        most = (1 << k_bits) - 1
        valid, fresh, ready = Signal(), Signal(), Signal()
        # Elements left in the run, and how many of them come before the image begins and ends.
        left, before, inside = (
            Signal(k_bits, name=name, reset_less=True) for name in ("left", "before", "inside")
        )
        limit, whole, load = Signal(k_bits), Signal(), Signal()
        stride = runs.stride
        run = hold(
            m,
            load,
            "run",
            step=Mux(stride.all(), C(-1, signed(2)), stride == 1),
            # Elements may share a segment, if they are in one beat.
            joined=stride.all() | (stride[1:] == 0),
            **{name: Value.cast(getattr(runs, name)) for name in _KEPT},
        )
        m.d.comb += [
            limit.eq(Mux(before != 0, before, Mux(inside != 0, inside, most))),
            whole.eq(left <= limit),
            runs.ready.eq(~valid | (ready & whole)),
            load.eq(runs.valid & runs.ready),
        ]

        def up_to(distance: Any) -> Any:
            """Saturate a distance to 0 and to the largest count of elements."""
            return Mux(distance < 0, 0, saturate(distance[:-1], k_bits))

        with m.If(runs.ready):
            m.d.sync += valid.eq(runs.valid)
        with m.If(load):
            m.d.sync += [fresh.eq(1), left.eq(runs.count), before.eq(0), inside.eq(most)]
            with m.If(runs.bounded):
                outside = (runs.y < 0) | (runs.y >= runs.height)
                m.d.sync += [
                    before.eq(Mux(outside, 0, up_to(-runs.x))),
                    inside.eq(Mux(outside, 0, up_to(runs.width - runs.x))),
                ]
        with m.Elif(valid & ready):
            m.d.sync += [
                fresh.eq(0),
                left.eq(left - limit),
                before.eq(0),
                inside.eq(Mux(before != 0, inside - before, 0)),
            ]
        return SimpleNamespace(
            valid=valid,
            ready=ready,
            run=run,
            fresh=fresh,  # high in the run's first part
            count=wire(m, Mux(whole, left, limit), "part_count"),
            zero=wire(m, (before != 0) | (inside == 0), "part_zero"),
            last=wire(m, whole & run.last, "part_last"),
        )

    def _segments(self, m: Any, part: Any) -> None:
        """Cut parts at the ends of beats."""
        word_bits, k_bits = self._jobs.word_bits, self._jobs.k_bits
        segment = self.o.payload.segment
        valid, load, moved = Signal(), Signal(), Signal()
        room, count, whole = Signal(4), Signal(4), Signal()
        address, outer = (
            Signal(word_bits, name=name, reset_less=True) for name in ("address", "outer")
        )
        left, k = (Signal(k_bits, name=name, reset_less=True) for name in ("part_left", "k"))
        member = Signal(LANE_BITS, reset_less=True)
        uncut = hold(m, load, "uncut", zero=part.zero, last=part.last)
        run = hold(
            m,
            load & part.fresh,
            "segment",
            **{name: getattr(part.run, name) for name in ("step", "joined", *_SEGMENT_KEPT)},
        )
        with m.If(~run.joined):
            m.d.comb += room.eq(1)
        with m.Elif(uncut.zero | (run.step == 0)):
            m.d.comb += room.eq(BEAT_WORDS)
        with m.Else():
            low = address[: BEAT_WORDS.bit_length() - 1]
            m.d.comb += room.eq(Mux(run.step == 1, BEAT_WORDS - low, low + 1))
        m.d.comb += [
            whole.eq(left <= room),
            count.eq(Mux(whole, left, room)),
            part.ready.eq(~valid | (self.o.ready & whole)),
            load.eq(part.valid & part.ready),
            moved.eq(valid & self.o.ready),
            self.o.valid.eq(valid),
            self.o.payload.context.eq(run.context),
            segment.address.eq(address),
            segment.step.eq(run.step),
            segment.count.eq(count),
            segment.zero.eq(uncut.zero),
            segment.across.eq(run.across),
            segment.group.eq(run.group),
            segment.member.eq(member),
            segment.k.eq(k),
            segment.last.eq(uncut.last & whole),
        ]

        # Distance from the segment's first element to its last. Without a segment it is 0: the
        # address is that of the last element already.
        span = Signal(signed(5))
        with m.If(valid & run.joined & run.step[0]):
            m.d.comb += span.eq(Mux(run.step[1], 1 - count, count - 1))
        with m.If(load):
            m.d.sync += [valid.eq(1), left.eq(part.count)]
        with m.Elif(moved):
            m.d.sync += [valid.eq(~whole), left.eq(left - room)]
        with m.If(load & part.fresh):
            base = Signal(word_bits)
            with m.Switch(part.run.base):
                with m.Case(RunBase.LAST):
                    m.d.comb += base.eq(address + span)
                with m.Case(RunBase.OUTER):
                    m.d.comb += base.eq(outer)
            first = wire(m, (base + part.run.distance)[:word_bits], "first")
            m.d.sync += [address.eq(first), k.eq(part.run.k), member.eq(part.run.member)]
            with m.If(part.run.base != RunBase.LAST):
                m.d.sync += outer.eq(first)
        with m.Elif(load | moved):
            goes_on = load | ~whole
            m.d.sync += address.eq(address + span + Mux(goes_on, run.stride, 0))
            with m.If(moved & run.across):
                m.d.sync += member.eq(member + count)
            with m.Elif(moved):
                m.d.sync += k.eq(k + count)
