"""Frames of a bank's result buffer: their allocation and the stores that empty them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import saturate
from hw.pim.bank.buffer.interface import RESULT_FRAMES
from hw.pim.work.layouts import LANE_BITS, NO_LINE, VECTOR_BITS, Jobs, Second
from hw.stream.fifo import StreamFifo

__all__ = ["ResultFrames", "frame_entry_layout"]

_MULTIPLY_CYCLES = 3


def frame_entry_layout(jobs: Jobs) -> data.StructLayout:
    """Return the layout of a frame's contents: ``length`` results of each of ``vectors`` vectors.

    ``index`` is the first result's number, counted along the second vectors (elementwise, along the
    elements) from the one at ``address``. ``line_left`` vectors are left in the first line.
    """
    return data.StructLayout(
        {
            "frame": range(RESULT_FRAMES),
            "index": 12,
            "length": 7,
            "vectors": VECTOR_BITS,
            "interleave": 2,
            "address": jobs.word_bits,
            "line_left": VECTOR_BITS,
        }
    )


class ResultFrames(wiring.Component):
    """Allocator of frames, which are used in turn and stored in the same order.

    Members
    -------
    work : In(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
    free : Out(1)
        High if ``frame`` is free.
    frame : Out(range(RESULT_FRAMES))
    taken : In(1)
        Pulse: ``frame`` is taken.
    entry : In(stream of :func:`frame_entry_layout`)
        One entry for each frame taken, in the same order; there is always room.
    written : In(1)
        Pulse: the results of the next frame in order are in the buffer.
    freed : In(1)
        Pulse: the next frame in order has been stored.
    store : Out(stream of :attr:`Jobs.store <hw.pim.work.layouts.Jobs.store>`)
        Stores of frames that are written.
    idle : Out(1)
        All frames that were taken have been handed to ``store``.
    """

    def __init__(self, jobs: Jobs, *, multipliers: int, adders: int) -> None:
        self._jobs = jobs
        self._lanes = min(multipliers, adders)
        self._adders = adders
        super().__init__(
            {
                "work": In(jobs.work),
                "free": Out(1),
                "frame": Out(range(RESULT_FRAMES)),
                "taken": In(1),
                "entry": In(stream.Signature(frame_entry_layout(jobs))),
                "written": In(1),
                "freed": In(1),
                "store": Out(stream.Signature(jobs.store)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        jobs, work, store = self._jobs, self.work, self.store.payload
        free = Signal(range(RESULT_FRAMES + 1), init=RESULT_FRAMES)
        m.d.comb += self.free.eq(free != 0)
        m.d.sync += [
            free.eq(free + self.freed - self.taken),
            self.frame.eq(self.frame + self.taken),
        ]

        m.submodules.entries = entries = StreamFifo(
            shape=frame_entry_layout(jobs), depth=RESULT_FRAMES
        )
        wiring.connect(m, wiring.flipped(self.entry), entries.i)
        entry = Signal(frame_entry_layout(jobs))
        m.d.comb += entry.eq(entries.o.payload)

        # The entry stays while its address is computed.
        written = Signal(range(RESULT_FRAMES + 1))
        age = Signal(range(_MULTIPLY_CYCLES + 1))
        handed = self.store.valid & self.store.ready
        m.d.comb += [
            self.store.valid.eq((age == _MULTIPLY_CYCLES) & (written != 0)),
            entries.o.ready.eq(handed),
            self.idle.eq(~entries.o.valid & (entries.level == 0)),
        ]
        m.d.sync += written.eq(written + self.written - handed)
        with m.If(handed):
            m.d.sync += age.eq(0)
        with m.Elif(entries.o.valid & (age != _MULTIPLY_CYCLES)):
            m.d.sync += age.eq(age + 1)

        result = work.result
        stride = Mux(work.elementwise, result.first, result.second)
        factor, product, address = (
            Signal(jobs.word_bits, name=name, reset_less=True)
            for name in ("factor", "product", "address")
        )
        with m.If(entries.o.valid):
            m.d.sync += [
                factor.eq(stride),
                product.eq(entry.index * factor),
                address.eq(entry.address + product),
            ]

        walk = store.walk
        lanes = Mux(work.second_kind == Second.NONE, self._adders, self._lanes)
        minus_one = (1 << jobs.word_bits) - 1
        m.d.comb += [
            store.frame.eq(entry.frame),
            store.linear.eq(work.elementwise),
            store.interleave.eq(entry.interleave),
            walk.address.eq(address),
            walk.vectors.eq(entry.vectors),
            walk.group_size.eq(lanes[: LANE_BITS + 1]),
            walk.vector.eq(result.first),
            walk.line.eq(Mux(work.lines, saturate(work.line, VECTOR_BITS), NO_LINE)),
            walk.line_left.eq(entry.line_left),
            walk.line_wrap.eq(work.result_line_wrap),
            walk.length.eq(entry.length),
            walk.across.eq(~work.elementwise & ((result.first == 1) | (result.first == minus_one))),
            walk.column.eq(stride),
            # The elements lie in one row that never ends.
            walk.columns.eq((1 << 24) - 1),
            walk.rows.eq((1 << 16) - 1),
        ]
        return m
