"""Cuts a bank's tiles into what its buffers hold, and orders loads and computation."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import saturate, wire
from hw.pim.config import PimConfig
from hw.pim.shared_multiplier import SharedMultiplier, Sum
from hw.pim.work.layouts import (
    BEAT_WORDS,
    COORDINATE_BITS,
    LANE_BITS,
    NO_LINE,
    VECTOR_BITS,
    Elementwise,
    Jobs,
    OperandBuffer,
    Padded,
    Second,
)
from hw.stream.fifo import StreamFifo

__all__ = ["Sequencer"]

_HALVES = 2
_JOBS_AHEAD = 4
_WITHOUT_WRAP = (1 << 24) - 1
"""Columns of a row that is longer than any buffer."""


class Sequencer(wiring.Component):
    """From tiles to jobs for the loader and for the lanes.

    A tile of a reduction is worked on in chunks: so many elements of its first vectors are loaded,
    then the same elements of its second vectors, block after block, and each block goes to the
    lanes with the chunk. All buffers have two halves; the loads run ahead of the lanes as far as
    halves are free, from a tile to the next one, too. An elementwise tile is one chunk.

    A tile takes some 30 cycles before its first load, a chunk some 15, beside what is under way.

    Members
    -------
    pairs, adders : In(LANE_BITS + 1)
        Of the bank: lanes with a multiplier and an adder, and adders. Constant.
    work : In(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
        Holds still from ``start`` to ``done``.
    start : In(1)
        Pulse: tiles of ``work`` are to be done.
    tile : In(stream of :attr:`Jobs.tile <hw.pim.work.layouts.Jobs.tile>`)
        The last one has ``end``.
    load : Out(stream of :attr:`Jobs.load <hw.pim.work.layouts.Jobs.load>`)
    loaded : In(1)
    loaded_buffer : In(:class:`~hw.pim.work.layouts.OperandBuffer`)
        Pulse: a load is done, and which buffer it was for.
    job : Out(stream of :attr:`Jobs.compute <hw.pim.work.layouts.Jobs.compute>`)
    release : In(3)
        Pulses: a half of that buffer is free again.
    drained : In(1)
        Lanes and storer have nothing to do.
    done : Out(1)
        Pulse: all tiles are done.
    """

    def __init__(self, config: PimConfig) -> None:
        self._jobs = jobs = Jobs(config)
        super().__init__(
            {
                "pairs": In(LANE_BITS + 1),
                "adders": In(LANE_BITS + 1),
                "work": In(jobs.work),
                "start": In(1),
                "tile": In(stream.Signature(jobs.tile)),
                "load": Out(stream.Signature(jobs.load)),
                "loaded": In(1),
                "loaded_buffer": In(OperandBuffer),
                "job": Out(stream.Signature(jobs.compute)),
                "release": In(len(OperandBuffer)),
                "drained": In(1),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        jobs, work = self._jobs, self.work
        word = jobs.word_bits
        plan = work.plan
        tile = Signal(jobs.tile)
        # Where the next chunk begins.
        channel, tap_row, tap_column, tap = Signal(16), Signal(16), Signal(24), Signal(32)
        bases = {
            name: Signal(word, name=f"{name}_base")
            for name in ("first", "second", "third", "result")
        }
        chunks = {name: Signal(word, name=f"{name}_chunk") for name in ("first", "second")}
        wraps = {
            name: Signal(word, name=name)
            for name in ("first_row", "first_channel", "second_row", "second_channel")
        }
        above, left, y, x, chunk_y, chunk_x, in_line_x = (
            Signal(signed(COORDINATE_BITS), name=name)
            for name in ("above", "left", "y", "x", "chunk_y", "chunk_x", "in_line_x")
        )
        line, line_left = (Signal(VECTOR_BITS, name=name) for name in ("line", "line_left"))
        whole_taps, rest_taps = Signal(jobs.k_bits), Signal(jobs.k_bits)
        channels_left = Signal(16)
        m.d.comb += channels_left.eq(work.channels - channel)

        own = work.elementwise | (work.second_kind == Second.PRIVATE)
        second_index = Mux(own, tile.first, tile.second)
        padded_index = Mux(work.padded == Padded.FIRST, tile.first, tile.second)
        # Without signs, which a simulator would work out again for each bit of a longer number.
        rows = wire(m, (work.tap_rows - 1)[:16], "rows")
        columns = wire(m, (work.tap_columns - 1)[:24], "columns")
        outer = ((tile.outer1, "outer1"), (tile.outer2, "outer2"))

        def base(nest: Any, index: Any) -> list[tuple[Any, Any]]:
            return [*((place, nest[name]) for place, name in outer), (index, nest.vector)]

        def chunk(nest: Any) -> list[tuple[Any, Any]]:
            return [(channel, nest.channel), (tap_row, nest.row), (tap_column, nest.column)]

        def wrap(name: str, nest: Any) -> list[Sum]:
            row, column = (columns, nest.column), (rows, nest.row)
            return [
                Sum(wraps[f"{name}_row"], nest.row, [row], negative=True),
                Sum(wraps[f"{name}_channel"], nest.channel, [row, column], negative=True),
            ]

        multiplier = SharedMultiplier(
            m,
            width=max(word, COORDINATE_BITS),
            lists={
                "work": [
                    *wrap("first", work.first),
                    *wrap("second", work.second),
                    Sum(whole_taps, 0, [(plan.channels, work.taps)]),
                    Sum(above, 0, [(work.pad_top, 1)], negative=True),
                    Sum(left, 0, [(work.pad_left, 1)], negative=True),
                ],
                "tile": [
                    Sum(bases["first"], work.first.address, base(work.first, tile.first)),
                    Sum(bases["second"], work.second.address, base(work.second, second_index)),
                    Sum(bases["third"], work.third.address, base(work.third, tile.first)),
                    Sum(
                        bases["result"],
                        work.result.address,
                        [
                            *((place, work.result[name]) for place, name in outer),
                            (tile.first, work.result.first),
                            (tile.second, work.result.second),
                        ],
                    ),
                    Sum(y, above, [(tile.outer1, work.stride)]),
                    Sum(x, left, [(padded_index, work.stride)]),
                ],
                "chunk": [
                    Sum(chunks["first"], bases["first"], chunk(work.first)),
                    Sum(chunks["second"], bases["second"], chunk(work.second)),
                    Sum(chunk_y, y, [(tap_row, work.dilation)]),
                    Sum(chunk_x, x, [(tap_column, work.dilation)]),
                    Sum(rest_taps, 0, [(channels_left, work.taps)]),
                ],
            },
        )

        # The chunk: whole channels, or taps of one.
        capacity = Signal(jobs.k_bits)
        whole, last_channels, last_taps = Signal(), Signal(), Signal()
        taps_left = Signal(32)
        length = Signal(jobs.k_bits)
        complete = Signal()
        m.d.comb += [
            capacity.eq(1 << plan.chunk),
            whole.eq(plan.channels != 0),
            last_channels.eq(channels_left <= Mux(whole, plan.channels, 1)),
            taps_left.eq(work.taps - tap),
            last_taps.eq(whole | (taps_left <= capacity)),
            complete.eq(last_channels & last_taps),
            length.eq(
                Mux(
                    whole,
                    Mux(last_channels, rest_taps, whole_taps),
                    Mux(last_taps, taps_left, capacity),
                )
            ),
        ]

        halves = {
            buffer: _Halves(m, buffer.name.lower(), self.release[buffer.value])
            for buffer in OperandBuffer
        }
        # A job for the lanes, and the buffers of which it is the first to use a half.
        ahead_layout = data.StructLayout({"job": jobs.compute, "needs": len(OperandBuffer)})
        m.submodules.ahead = ahead = StreamFifo(shape=ahead_layout, depth=_JOBS_AHEAD)
        next_job = ahead.i.payload
        block, block_count, block_address = Signal(12), Signal(12), Signal(word)
        block_left, block_size, last_block = Signal(12), Signal(12), Signal()
        block_x = Signal(signed(COORDINATE_BITS))
        shared = work.second_kind == Second.SHARED
        sums = ~work.elementwise & (work.second_kind == Second.NONE)
        lanes = Mux(sums, self.adders, self.pairs)
        has_second = work.elementwise | (work.second_kind != Second.NONE)
        has_third = work.elementwise & (work.operation == Elementwise.MULADD)
        first_half, second_half, third_half = (each.loaded for each in halves.values())
        m.d.comb += [
            next_job.job.halves.eq(
                Cat(first_half, second_half, Mux(work.elementwise, third_half, second_half))
            ),
            next_job.job.release.eq(Cat(last_block, has_second, has_third)),
            next_job.needs.eq(Cat(block == 0, has_second, has_third)),
            next_job.job.length.eq(Mux(work.elementwise, tile.first_count, length)),
            next_job.job.channel.eq(channel),
            next_job.job.tap.eq(tap),
            next_job.job.first_count.eq(tile.first_count),
            next_job.job.second.eq(block),
            next_job.job.second_count.eq(block_count),
            next_job.job.address.eq(bases["result"]),
            next_job.job.line_left.eq(line_left),
        ]

        m.d.comb += [
            block_left.eq(tile.second_count - block),
            block_size.eq(1 << plan.block),
            last_block.eq(~shared | (block_left <= block_size)),
            block_count.eq(Mux(~shared, 1, Mux(last_block, block_left, block_size))),
        ]

        no_lines = {"line": NO_LINE, "line_left": NO_LINE}
        in_lines = {"line": line, "line_left": line_left}
        lines = {
            "first": {
                **in_lines,
                "line_wrap": work.first_line_wrap,
                "line_x": chunk_x - in_line_x,
            },
            "second": {
                **{name: Mux(shared, NO_LINE, each) for name, each in in_lines.items()},
                "line_wrap": work.second_line_wrap,
            },
        }

        def vectors_of(name: str, address: Any, vectors: Any, group_size: Any) -> Any:
            """The walk of a reduction's operand."""
            nest = work[name]
            return {
                "address": address,
                "vectors": vectors,
                "group_size": group_size,
                "vector": nest.vector,
                "length": length,
                "across": work[f"{name}_across"],
                "column": nest.column,
                "row_wrap": wraps[f"{name}_row"],
                "channel_wrap": wraps[f"{name}_channel"],
                "tap_column": tap_column,
                "tap_row": tap_row,
                "columns": work.tap_columns,
                "rows": work.tap_rows,
                "bounded": work.padded == (Padded.FIRST if name == "first" else Padded.SECOND),
                "y": chunk_y,
                "x": chunk_x if name == "first" else block_x,
                "vector_x": work.stride,
                **lines[name],
                "dilation": work.dilation,
                "height": work.image_height,
                "width": work.image_width,
            }

        # One beat of an element that repeats.
        count = tile.first_count
        copies = wire(m, Mux(count < BEAT_WORDS, count, BEAT_WORDS), "copies")

        def elements_of(name: str) -> Any:
            """The walk of an elementwise operand."""
            return {
                "address": bases[name],
                "vectors": 1,
                "group_size": 1,
                **no_lines,
                "length": Mux(work[f"{name}_repeats"], copies, count),
                "column": work[name].vector,
                "columns": _WITHOUT_WRAP,
                "rows": 1,
            }

        # A register for each field, which is written when a half is free: while the loads wait,
        # there is nothing to work out.
        walk = {
            name: Signal(each.shape, name=f"walk_{name}", reset_less=True)
            for name, each in jobs.walk
        }
        load = self.load.payload
        load_buffer, load_half = Signal(OperandBuffer), Signal()
        m.d.comb += [
            load.buffer.eq(load_buffer),
            load.half.eq(load_half),
            *(load.walk[name].eq(each) for name, each in walk.items()),
        ]
        with m.If(self.load.ready):
            m.d.sync += self.load.valid.eq(0)

        def offer(buffer: OperandBuffer, fields: Any) -> Any:
            """Orders a load for the half that is next; true when it is taken."""
            half = halves[buffer]
            m.d.comb += half.take.eq(half.free & (~self.load.valid | self.load.ready))
            with m.If(half.take):
                m.d.sync += [
                    self.load.valid.eq(1),
                    load_buffer.eq(buffer),
                    load_half.eq(half.next),
                    *(each.eq(fields.get(field, 0)) for field, each in walk.items()),
                ]
            return half.take

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += multiplier.start["work"].eq(self.start)
                with m.If(self.start):
                    m.next = "WORK"
            with m.State("WORK"), m.If(multiplier.done):
                m.next = "TILE"
            with m.State("TILE"):
                m.d.comb += self.tile.ready.eq(1)
                m.d.sync += tile.eq(self.tile.payload)
                with m.If(self.tile.valid):
                    m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.sync += [each.eq(0) for each in (channel, tap_row, tap_column, tap, block)]
                with m.If(tile.end):
                    m.next = "DRAIN"
                with m.Else():
                    m.d.comb += multiplier.start["tile"].eq(1)
                    in_line = wire(m, (work.line - tile.first)[: len(work.line)], "in_line")
                    m.d.sync += [
                        target.eq(Mux(work.lines, saturate(vectors, VECTOR_BITS), NO_LINE))
                        for target, vectors in ((line, work.line), (line_left, in_line))
                    ]
                    m.next = "BASES"
            with m.State("BASES"), m.If(multiplier.done):
                with m.If(work.elementwise):
                    m.next = "ELEMENTS_first"
                with m.Else():
                    m.next = "CHUNK"
            following = ("ELEMENTS_second", "ELEMENTS_third", "JOB")
            for buffer, state in zip(OperandBuffer, following, strict=True):
                name = buffer.name.lower()
                needed = has_third if buffer == OperandBuffer.THIRD else 1
                with m.State(f"ELEMENTS_{name}"):
                    with m.If(needed), m.If(offer(buffer, elements_of(name))):
                        m.next = state
                    with m.Else():
                        m.next = state
            with m.State("CHUNK"):
                m.d.comb += multiplier.start["chunk"].eq(1)
                m.d.sync += in_line_x.eq(x - left)
                m.next = "OFFSETS"
            with m.State("OFFSETS"), m.If(multiplier.done):
                m.next = "FIRST"
            with m.State("FIRST"):
                vectors = vectors_of("first", chunks["first"], tile.first_count, lanes)
                m.d.sync += [
                    block.eq(0),
                    block_address.eq(chunks["second"]),
                    block_x.eq(chunk_x),
                ]
                with m.If(offer(OperandBuffer.FIRST, vectors)):
                    with m.If(work.second_kind == Second.NONE):
                        m.next = "JOB"
                    with m.Else():
                        m.next = "SECOND"
            with m.State("SECOND"):
                vectors = vectors_of(
                    "second",
                    block_address,
                    Mux(shared, block_count, tile.first_count),
                    Mux(shared, 8, lanes),
                )
                with m.If(offer(OperandBuffer.SECOND, vectors)):
                    m.next = "JOB"
            with m.State("JOB"):
                m.d.comb += ahead.i.valid.eq(1)
                with m.If(ahead.i.ready):
                    m.d.sync += [
                        block.eq(block + block_size),
                        block_address.eq(block_address + (work.second.vector << plan.block)[:word]),
                        block_x.eq(block_x + (work.stride << plan.block)),
                    ]
                    with m.If(work.elementwise):
                        m.next = "TILE"
                    with m.Elif(~last_block):
                        m.next = "SECOND"
                    with m.Elif(complete):
                        m.next = "TILE"
                    with m.Elif(last_taps):
                        m.d.sync += [
                            channel.eq(channel + Mux(whole, plan.channels, 1)),
                            *(each.eq(0) for each in (tap_row, tap_column, tap)),
                        ]
                        m.next = "CHUNK"
                    with m.Else():
                        m.d.sync += [tap.eq(tap + capacity), tap_column.eq(tap_column + capacity)]
                        m.next = "WRAP"
            with m.State("WRAP"):
                with m.If(tap_column >= work.tap_columns):
                    m.d.sync += [
                        tap_column.eq(tap_column - work.tap_columns),
                        tap_row.eq(tap_row + 1),
                    ]
                with m.Else():
                    m.next = "CHUNK"
            with m.State("DRAIN"):
                # What is handed from part to part is seen by the one or the other a cycle later.
                quiet = Signal(range(4))
                idle = (ahead.level == 0) & self.drained
                m.d.sync += quiet.eq(Mux(idle, quiet + 1, 0))
                with m.If(quiet == 3):
                    m.d.comb += self.done.eq(1)
                    m.d.sync += quiet.eq(0)
                    m.next = "IDLE"
        self._hand_over(m, ahead)
        return m

    def _hand_over(self, m: Any, ahead: Any) -> None:
        """Passes a job on when what it needs is loaded."""
        needs, missing = ahead.o.payload.needs, Signal(len(OperandBuffer))
        go = self.job.valid & self.job.ready
        for place, buffer in enumerate(OperandBuffer):
            loads = Signal(range(_HALVES + 1), name=f"loads_{place}")
            arrives = self.loaded & (self.loaded_buffer == buffer)
            m.d.sync += loads.eq(loads + arrives - (go & needs[place]))
            m.d.comb += missing[place].eq(needs[place] & (loads == 0))
        m.d.comb += [
            self.job.payload.eq(ahead.o.payload.job),
            self.job.valid.eq(ahead.o.valid & ~missing.any()),
            ahead.o.ready.eq(self.job.ready & ~missing.any()),
        ]


class _Halves:
    """The halves of a buffer, which are filled in turn."""

    def __init__(self, m: Any, name: str, release: Any) -> None:
        free = Signal(range(_HALVES + 1), init=_HALVES, name=f"{name}_free")
        self.next = Signal(name=f"{name}_next")
        """The half that is filled next."""
        self.loaded = Signal(name=f"{name}_loaded")
        """The half that was filled last."""
        self.take = Signal(name=f"{name}_take")
        """Is to be high when a load of the next half has been ordered."""
        self.free = Signal(name=f"{name}_is_free")
        m.d.comb += [self.loaded.eq(~self.next), self.free.eq(free != 0)]
        m.d.sync += [self.next.eq(self.next ^ self.take), free.eq(free + release - self.take)]
