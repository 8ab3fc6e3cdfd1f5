"""First half of a walk: runs of elements at a constant distance in memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import hold, wire
from hw.pim.bank.buffer.interface import COLUMNS, GROUP_BITS
from hw.pim.bank.move.walk_setup import NEAR_BITS, WalkSetup, near
from hw.pim.config import PimConfig
from hw.pim.work.layouts import LANE_BITS, VECTOR_BITS, Jobs

__all__ = ["RunBase", "RunSignature", "RunWalker"]

# Fields of the walk that are registered unchanged.
_KEPT = (
    "across", "bounded", "column", "vector", "row_wrap", "channel_wrap", "line_wrap", "length",
    "group_size", "vectors", "line", "line_left", "height", "width",
)  # fmt: skip


class RunBase(enum.Enum, shape=2):
    """Origin of a run's distance."""

    NOTHING = 0
    """Origin at 0: the distance is the address of the run's first element."""
    LAST = 1
    """Origin at the element before the run."""
    OUTER = 2
    """Origin at the first element of the last run with ``NOTHING`` or ``OUTER``."""


class RunSignature(wiring.Signature):
    """Run of ``count`` elements, ``stride`` words apart; the first is ``distance`` from ``base``.

    Element i is number ``k`` + i of its vector, or, with ``across``, number ``k`` of the vector
    ``member`` + i. With ``bounded``, ``x`` grows by one per element. The element is inside the
    image if ``x`` is from 0 to ``width`` - 1 and ``y`` from 0 to ``height`` - 1. The fields have a
    handshake like a stream's payload.
    """

    def __init__(self, config: PimConfig, context_bits: int) -> None:
        jobs = Jobs(config)
        super().__init__(
            {
                "valid": Out(1),
                "ready": In(1),
                "base": Out(RunBase),
                "distance": Out(jobs.word_bits),
                "stride": Out(jobs.word_bits),
                "count": Out(jobs.k_bits),
                "bounded": Out(1),
                "x": Out(signed(NEAR_BITS)),
                "y": Out(signed(NEAR_BITS)),
                "width": Out(16),
                "height": Out(16),
                "across": Out(1),
                "group": Out(GROUP_BITS),
                "member": Out(LANE_BITS),
                "k": Out(jobs.k_bits),
                "last": Out(1),
                "context": Out(context_bits),
            }
        )


def _beyond(coordinate: Any, distance: Any) -> Any:
    """Add ``distance`` (< 2 ** 16) to a coordinate that saturates at 2 ** 16.

    Both have :data:`~hw.pim.bank.move.walk_setup.NEAR_BITS`.
    """
    return Mux(coordinate >= 1 << 16, 1 << 16, coordinate + distance)


class RunWalker(wiring.Component):
    """Converter of walks into runs.

    A run ends at the end of a row and, across, of a line or of eight members of a group. If a
    bounded walk's coordinate does not grow by one from element to element, each element is a run.

    It makes one run a cycle. The first comes five cycles after the walk is offered. The walk is
    taken in the cycle before that, but not until the previous walk is over.

    Parameters
    ----------
    config
        The pool.
    context_bits
        Width of the context.

    Members
    -------
    i : In(stream of :attr:`Jobs.walk <hw.pim.work.layouts.Jobs.walk>`)
    context : In(context_bits)
        Context of the walk that is taken in this cycle.
    o : Out(:class:`RunSignature`)
    """

    def __init__(self, config: PimConfig, *, context_bits: int) -> None:
        self._jobs = Jobs(config)
        super().__init__(
            {
                "i": In(stream.Signature(self._jobs.walk)),
                "context": In(context_bits),
                "o": Out(RunSignature(config, context_bits)),
            }
        )
        # Registers of the present walk, and the events of a cycle.
        self._setup = WalkSetup(config)
        self._own: Any = None
        self._load, self._taken = Signal(), Signal()
        self._inner_end, self._line_end = Signal(), Signal()
        self._row_end, self._channel_end = Signal(), Signal()

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        walk, run = self.i.payload, self.o
        m.submodules.setup = setup = self._setup
        active = Signal()
        base, distance = Signal(RunBase), Signal(self._jobs.word_bits, reset_less=True)
        m.d.comb += [
            setup.walk.eq(walk),
            setup.valid.eq(self.i.valid),
            setup.taken.eq(self._load),
            self.i.ready.eq(setup.done & ~active),
            run.valid.eq(active),
            self._load.eq(self.i.valid & self.i.ready),
            self._taken.eq(run.valid & run.ready),
        ]
        inner_step = wire(m, Mux(walk.across, walk.vector_x, walk.dilation), "inner_step")
        own = self._own = hold(
            m,
            self._load,
            "own",
            single=walk.bounded & (inner_step != 1),
            stride=Mux(walk.across, walk.vector, walk.column),
            columns=setup.columns,
            first_columns=setup.first_columns,
            rows=setup.rows,
            first_rows=setup.first_rows,
            # Coordinate steps of the inner and of the outer loop.
            inner_step=inner_step,
            outer_step=Mux(walk.across, walk.dilation, walk.vector_x),
            # x at which the outer loop begins another line, or, across, another row; x of column 0
            # in other lines.
            outer_wrap_x=Mux(walk.across, setup.row_x, near(walk.line_x)),
            line_row_x=setup.line_row_x,
            context=self.context,
            **{name: walk[name] for name in _KEPT},
        )
        vectors, vectors_end = self._vectors(m)
        elements, elements_end = self._elements(m)
        self._coordinates(m)
        last = wire(m, vectors_end & elements_end, "last")
        m.d.comb += [
            self._inner_end.eq(Mux(own.across, vectors_end, elements_end)),
            run.base.eq(base),
            run.distance.eq(distance),
            run.stride.eq(own.stride),
            run.count.eq(Mux(own.across, vectors, elements)),
            run.bounded.eq(own.bounded),
            run.width.eq(own.width),
            run.height.eq(own.height),
            run.across.eq(own.across),
            run.last.eq(last),
            run.context.eq(own.context),
        ]
        with m.If(self._load):
            m.d.sync += [active.eq(1), base.eq(RunBase.NOTHING), distance.eq(walk.address)]
        with m.Elif(self._taken):
            m.d.sync += [
                active.eq(~last),
                base.eq(Mux(self._inner_end, RunBase.OUTER, RunBase.LAST)),
            ]
            # The next run begins at another vector, or at the vector's next element.
            with m.If(own.across ^ self._inner_end):
                m.d.sync += distance.eq(Mux(self._line_end, own.line_wrap, own.vector))
            with m.Elif(self._channel_end):
                m.d.sync += distance.eq(own.channel_wrap)
            with m.Elif(self._row_end):
                m.d.sync += distance.eq(own.row_wrap)
            with m.Else():
                m.d.sync += distance.eq(own.column)
        return m

    def _vectors(self, m: Any) -> tuple[Any, Any]:
        """Return the number of the run's vectors, and whether they are the last."""
        own, start, run = self._own, self.i.payload, self.o
        member, group, left, line_left = (
            Signal(bits, name=name, reset_less=True)
            for name, bits in (
                ("member", LANE_BITS),
                ("group", GROUP_BITS),
                ("vectors_left", VECTOR_BITS),
                ("line_left", VECTOR_BITS),
            )
        )
        room, most, count, end = Signal(4), Signal(4), Signal(4), Signal()
        next_member, group_ends = Signal(LANE_BITS + 1), Signal()
        m.d.comb += [
            # Up to the group's end, or its member 8.
            room.eq(Mux(member[3] | (own.group_size <= COLUMNS), own.group_size, COLUMNS) - member),
            most.eq(Mux(left < room, left, room)),
            count.eq(Mux(~own.across | own.single, 1, Mux(line_left < most, line_left, most))),
            end.eq(left == count),
            self._line_end.eq(line_left == count),
            next_member.eq(member + count),
            group_ends.eq(next_member == own.group_size),
            run.member.eq(member),
            run.group.eq(group),
        ]
        with m.If(self._load | (self._taken & own.across & self._inner_end)):
            m.d.sync += [
                member.eq(0),
                group.eq(0),
                left.eq(Mux(self._load, start.vectors, own.vectors)),
                line_left.eq(Mux(self._load, start.line_left, own.line_left)),
            ]
        with m.Elif(self._taken & (own.across | self._inner_end)):
            m.d.sync += [
                member.eq(Mux(group_ends, 0, next_member)),
                group.eq(group + group_ends),
                left.eq(left - count),
                line_left.eq(Mux(self._line_end, own.line, line_left - count)),
            ]
        return count, end

    def _elements(self, m: Any) -> tuple[Any, Any]:
        """Return the number of the run's elements per vector, and whether they are the last."""
        own, start, run = self._own, self.i.payload, self.o
        bits = self._jobs.k_bits
        k, left, columns_left = (
            Signal(bits, name=name, reset_less=True)
            for name in ("k", "elements_left", "columns_left")
        )
        rows_left = Signal(16, reset_less=True)
        count, end = Signal(bits), Signal()
        along = Mux(columns_left < left, columns_left, left)
        m.d.comb += [
            count.eq(Mux(own.across | own.single, 1, along)),
            end.eq(left == count),
            self._row_end.eq(columns_left == count),
            self._channel_end.eq(self._row_end & (rows_left == 1)),
            run.k.eq(k),
        ]
        with m.If(self._load | (self._taken & ~own.across & self._inner_end)):
            m.d.sync += [
                k.eq(0),
                left.eq(Mux(self._load, start.length, own.length)),
                columns_left.eq(Mux(self._load, self._setup.first_columns, own.first_columns)),
                rows_left.eq(Mux(self._load, self._setup.first_rows, own.first_rows)),
            ]
        with m.Elif(self._taken & (~own.across | self._inner_end)):
            m.d.sync += [
                k.eq(k + count),
                left.eq(left - count),
                columns_left.eq(Mux(self._row_end, own.columns, columns_left - count)),
            ]
            with m.If(self._row_end):
                m.d.sync += rows_left.eq(Mux(self._channel_end, own.rows, rows_left - 1))
        return count, end

    def _coordinates(self, m: Any) -> None:
        """Track the run's coordinates in the image, if the walk is bounded."""
        own, start, run = self._own, self.i.payload, self.o
        # x and y of the run, and of the inner loop's begin (outer); x at which the inner loop
        # begins another row, or, across, another line; y of row 0 in the outer loop's line.
        x, y, outer_x, outer_y, wrap_x, channel_y = (
            Signal(signed(NEAR_BITS), name=name, reset_less=True)
            for name in ("x", "y", "outer_x", "outer_y", "wrap_x", "channel_y")
        )
        m.d.comb += [run.x.eq(x), run.y.eq(y)]
        with m.If(self._load):
            near_x = wire(m, near(start.x), "near_x")
            near_y = wire(m, near(start.y), "near_y")
            m.d.sync += [
                x.eq(near_x),
                y.eq(near_y),
                outer_x.eq(near_x),
                outer_y.eq(near_y),
                wrap_x.eq(Mux(start.across, near(start.line_x), self._setup.row_x)),
                channel_y.eq(self._setup.channel_y),
            ]
        with m.Elif(self._taken & own.bounded & ~self._inner_end):
            with m.If(Mux(own.across, self._line_end, self._row_end)):
                returns = ~own.across & self._channel_end
                m.d.sync += [
                    x.eq(wrap_x),
                    y.eq(Mux(returns, channel_y, _beyond(y, own.inner_step))),
                ]
            with m.Else():
                m.d.sync += x.eq(_beyond(x, Mux(own.single, own.inner_step, run.count)))
        with m.Elif(self._taken & own.bounded):
            next_x, next_y = (Signal(signed(NEAR_BITS), name=name) for name in ("next_x", "next_y"))
            m.d.sync += [x.eq(next_x), y.eq(next_y), outer_x.eq(next_x), outer_y.eq(next_y)]
            with m.If(Mux(own.across, self._row_end, self._line_end)):
                returns = own.across & self._channel_end
                m.d.comb += [
                    next_x.eq(own.outer_wrap_x),
                    next_y.eq(Mux(returns, channel_y, _beyond(outer_y, own.outer_step))),
                ]
                m.d.sync += wrap_x.eq(own.line_row_x)
                with m.If(~own.across):
                    m.d.sync += channel_y.eq(_beyond(channel_y, own.outer_step))
            with m.Else():
                m.d.comb += [next_x.eq(_beyond(outer_x, own.outer_step)), next_y.eq(outer_y)]
                m.d.sync += wrap_x.eq(_beyond(wrap_x, own.outer_step))
