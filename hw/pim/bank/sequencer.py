"""Sequencer: cuts a bank's tiles into pieces that fit its buffers, and orders loads and jobs."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.bank.pieces import Block, Chunk, Tile, WholeWork
from hw.pim.config import PimConfig
from hw.pim.shared_multiplier import SharedMultiplier
from hw.pim.work.layouts import (
    COORDINATE_BITS,
    LANE_BITS,
    Jobs,
    OperandBuffer,
    Second,
)
from hw.stream.fifo import StreamFifo

__all__ = ["Sequencer"]

_HALVES = 2
_JOBS_AHEAD = 4


class Sequencer(wiring.Component):
    """Converter of tiles into jobs for the loader and for the lanes.

    A reduction's tile is cut into chunks: ranges of the vectors' elements. For each chunk the
    loader fetches the first vectors, then the second vectors, block by block. Each block makes one
    job for the lanes. All buffers have two halves; loads run ahead of the lanes while halves are
    free, also into the next tile. An elementwise tile is one chunk.

    A tile takes some 30 cycles before its first load, a chunk some 15; earlier jobs run meanwhile.

    Members
    -------
    pairs, adders : In(LANE_BITS + 1)
        Lanes of the bank with a multiplier and an adder, and its adders; constant.
    work : In(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
        Holds still from ``start`` to ``done``.
    start : In(1)
        Pulse: begin the tiles of ``work``.
    tile : In(stream of :attr:`Jobs.tile <hw.pim.work.layouts.Jobs.tile>`)
        The last one has ``end``.
    load : Out(stream of :attr:`Jobs.load <hw.pim.work.layouts.Jobs.load>`)
    loaded : In(1)
    loaded_buffer : In(:class:`~hw.pim.work.layouts.OperandBuffer`)
        Pulse: a load into this buffer is done.
    job : Out(stream of :attr:`Jobs.compute <hw.pim.work.layouts.Jobs.compute>`)
    release : In(2)
        Pulse per buffer: one of its halves is free again.
    drained : In(1)
        Lanes and storer are idle.
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
        whole = WholeWork(m, jobs, work)
        tile = Tile(jobs, work, whole)
        chunk = Chunk(m, jobs, work, tile)
        block = Block(m, jobs, work, tile)
        sums = SharedMultiplier(
            m,
            width=max(jobs.word_bits, COORDINATE_BITS),
            lists={"work": whole.sums(), "tile": tile.sums(), "chunk": chunk.sums()},
        )
        loads = _Loads(m, self.load, jobs, self.release)
        # A job for the lanes, and the buffers with a half that no earlier job used.
        ahead_layout = data.StructLayout({"job": jobs.compute, "needs": len(OperandBuffer)})
        m.submodules.ahead = ahead = StreamFifo(shape=ahead_layout, depth=_JOBS_AHEAD)
        self._describe_job(m, ahead.i.payload, tile, chunk, block, loads)
        with m.FSM():
            self._begin_work_and_tile(m, sums, tile, chunk, block)
            self._load_elements(m, tile, loads)
            self._load_vectors(m, sums, tile, chunk, block, loads)
            self._offer_job(m, ahead.i, chunk, block)
            self._drain(m, ahead)
        self._hand_over(m, ahead)
        return m

    def _describe_job(
        self, m: Any, described: Any, tile: Tile, chunk: Chunk, block: Block, loads: _Loads
    ) -> None:
        """Describe the job of the present chunk and block, and the loads that it waits for."""
        work, job = self.work, described.job
        m.d.comb += [
            job.halves.eq(Cat(half.loaded for half in loads.halves.values())),
            job.release.eq(Cat(block.last, tile.whole.has_second)),
            described.needs.eq(Cat(block.start == 0, tile.whole.has_second)),
            job.length.eq(Mux(work.elementwise, tile.fields.first_count, chunk.length)),
            job.channel.eq(chunk.channel),
            job.tap.eq(chunk.tap),
            job.first_count.eq(tile.fields.first_count),
            job.second.eq(block.start),
            job.second_count.eq(block.count),
            job.address.eq(tile.bases["result"]),
            job.line_left.eq(tile.line_left),
        ]

    def _begin_work_and_tile(
        self, m: Any, sums: SharedMultiplier, tile: Tile, chunk: Chunk, block: Block
    ) -> None:
        """Add the states that take a work or a tile and compute its sums."""
        with m.State("IDLE"):
            m.d.comb += sums.start["work"].eq(self.start)
            with m.If(self.start):
                m.next = "WORK"
        with m.State("WORK"), m.If(sums.done):
            m.next = "TILE"
        with m.State("TILE"):
            m.d.comb += self.tile.ready.eq(1)
            m.d.sync += tile.fields.eq(self.tile.payload)
            with m.If(self.tile.valid):
                m.next = "BEGIN"
        with m.State("BEGIN"):
            chunk.restart(m)
            m.d.sync += block.start.eq(0)
            with m.If(tile.fields.end):
                m.next = "DRAIN"
            with m.Else():
                m.d.comb += sums.start["tile"].eq(1)
                tile.find_lines(m)
                m.next = "BASES"
        with m.State("BASES"), m.If(sums.done):
            with m.If(self.work.elementwise):
                m.next = "ELEMENTS_first"
            with m.Else():
                m.next = "CHUNK"

    def _load_elements(self, m: Any, tile: Tile, loads: _Loads) -> None:
        """Add the states that load the operands of an elementwise tile, one after the other."""
        for buffer, state in zip(OperandBuffer, ("ELEMENTS_second", "JOB"), strict=True):
            name = buffer.name.lower()
            with m.State(f"ELEMENTS_{name}"), m.If(loads.offer(m, buffer, tile.elements(name))):
                m.next = state

    def _load_vectors(
        self,
        m: Any,
        sums: SharedMultiplier,
        tile: Tile,
        chunk: Chunk,
        block: Block,
        loads: _Loads,
    ) -> None:
        """Add the states that begin a chunk, load its first vectors and a block of second ones."""
        shared, first_count = tile.whole.shared, tile.fields.first_count
        lanes = Mux(tile.whole.only_sums, self.adders, self.pairs)
        with m.State("CHUNK"):
            m.d.comb += sums.start["chunk"].eq(1)
            m.d.sync += chunk.in_line_x.eq(tile.x - tile.whole.left)
            m.next = "OFFSETS"
        with m.State("OFFSETS"), m.If(sums.done):
            m.next = "FIRST"
        with m.State("FIRST"):
            block.restart(m, chunk)
            vectors = chunk.vectors(
                "first",
                address=chunk.addresses["first"],
                vectors=first_count,
                group_size=lanes,
                x=chunk.x,
            )
            with m.If(loads.offer(m, OperandBuffer.FIRST, vectors)):
                with m.If(self.work.second_kind == Second.NONE):
                    m.next = "JOB"
                with m.Else():
                    m.next = "SECOND"
        with m.State("SECOND"):
            vectors = chunk.vectors(
                "second",
                address=block.address,
                vectors=Mux(shared, block.count, first_count),
                group_size=Mux(shared, 8, lanes),
                x=block.x,
            )
            with m.If(loads.offer(m, OperandBuffer.SECOND, vectors)):
                m.next = "JOB"

    def _offer_job(self, m: Any, job: Any, chunk: Chunk, block: Block) -> None:
        """Add the states that hand on a job and go to the next block, chunk or tile."""
        with m.State("JOB"):
            m.d.comb += job.valid.eq(1)
            with m.If(job.ready):
                block.advance(m)
                with m.If(self.work.elementwise):
                    m.next = "TILE"
                with m.Elif(~block.last):
                    m.next = "SECOND"
                with m.Elif(chunk.complete):
                    m.next = "TILE"
                with m.Elif(chunk.last_taps):
                    chunk.advance_channels(m)
                    m.next = "CHUNK"
                with m.Else():
                    chunk.advance_taps(m)
                    m.next = "WRAP"
        with m.State("WRAP"):
            with m.If(chunk.is_beyond_row):
                chunk.wrap_row(m)
            with m.Else():
                m.next = "CHUNK"

    def _drain(self, m: Any, ahead: Any) -> None:
        """Add the state that waits until all jobs are done."""
        with m.State("DRAIN"):
            # A job between two parts may be unseen by both for a cycle.
            quiet = Signal(range(4))
            idle = (ahead.level == 0) & self.drained
            m.d.sync += quiet.eq(Mux(idle, quiet + 1, 0))
            with m.If(quiet == 3):
                m.d.comb += self.done.eq(1)
                m.d.sync += quiet.eq(0)
                m.next = "IDLE"

    def _hand_over(self, m: Any, ahead: Any) -> None:
        """Pass a job on once its loads are done."""
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


class _Loads:
    """Orders to the loader, each for the next half of its buffer."""

    def __init__(self, m: Any, port: Any, jobs: Jobs, release: Any) -> None:
        self.halves = {
            buffer: _Halves(m, buffer.name.lower(), release[buffer.value])
            for buffer in OperandBuffer
        }
        self._port = port
        # A register for each field, written only when a half is free: a waiting load costs a
        # simulator nothing.
        self._walk = {
            name: Signal(field.shape, name=f"walk_{name}", reset_less=True)
            for name, field in jobs.walk
        }
        self._buffer, self._half = (
            Signal(OperandBuffer, name="load_buffer"),
            Signal(name="load_half"),
        )
        m.d.comb += [
            port.payload.buffer.eq(self._buffer),
            port.payload.half.eq(self._half),
            *(port.payload.walk[name].eq(value) for name, value in self._walk.items()),
        ]
        with m.If(port.ready):
            m.d.sync += port.valid.eq(0)

    def offer(self, m: Any, buffer: OperandBuffer, walk: dict[str, Any]) -> Any:
        """Order a load of ``walk`` into ``buffer``; return whether it is taken in this cycle."""
        half, port = self.halves[buffer], self._port
        m.d.comb += half.take.eq(half.free & (~port.valid | port.ready))
        with m.If(half.take):
            m.d.sync += [
                port.valid.eq(1),
                self._buffer.eq(buffer),
                self._half.eq(half.next),
                *(register.eq(walk.get(name, 0)) for name, register in self._walk.items()),
            ]
        return half.take


class _Halves:
    """Halves of a buffer, filled in turn."""

    def __init__(self, m: Any, name: str, release: Any) -> None:
        free = Signal(range(_HALVES + 1), init=_HALVES, name=f"{name}_free")
        self.next = Signal(name=f"{name}_next")
        """Half that is filled next."""
        self.loaded = Signal(name=f"{name}_loaded")
        """Half that was filled last."""
        self.take = Signal(name=f"{name}_take")
        """Input: a load of the next half is ordered in this cycle."""
        self.free = Signal(name=f"{name}_is_free")
        m.d.comb += [self.loaded.eq(~self.next), self.free.eq(free != 0)]
        m.d.sync += [self.next.eq(self.next ^ self.take), free.eq(free + release - self.take)]
