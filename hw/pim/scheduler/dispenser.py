"""Dispenser: cuts works into tiles and deals them to the banks that are ready."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import PimConfig
from hw.pim.placement import MAX_LANES
from hw.pim.selected import selected
from hw.pim.work.layouts import INTERLEAVE, Jobs

__all__ = ["Dispenser"]

_INDICES = ("first", "second", "outer1", "outer2")


class Dispenser(wiring.Component):
    """Dealer of tiles to banks: the first bank of a work that is ready gets its next tile.

    A bank requests a tile by ``ready``, and then waits for it. Ready banks are served in turn, one
    every four cycles; a bank that is ready alone has its tile four cycles later. Tiles step through
    the first vectors fastest, then the second vectors, then outer1, then outer2. A tile has at most
    the bank's lanes times 2 ** ``depth`` first vectors, or 2 ** ``chunk`` elements of an
    elementwise work. It has at most 2 ** ``seconds`` second vectors.

    With ``lines``, outer1 counts the lines of first vectors, and a tile may cross lines. Each line
    end in a tile delays the next tile by a cycle, the first one by two cycles. The last lines of
    the work cost one cycle together.

    A lane's eight results in turn are a power of two of first vectors times a power of two of
    second vectors. With eight second vectors, the rest of the first vectors is therefore cut into
    tiles that leave no turn idle. Three vectors a lane, for instance, make a tile of two and a tile
    of one.

    Parameters
    ----------
    config
        The pool: its banks with their units, and its works in flight.

    Members
    -------
    accept : In(1)
        A work takes ``slot``. At most every other cycle.
    work : In(:attr:`Jobs.checked <hw.pim.work.layouts.Jobs.checked>`)
        With ``accept``: the work.
    start : In(1)
        The work of ``slot`` starts on ``banks``, which it did not have before.
    slot : In(range(config.works))
    banks : In(config.banks)
    owner : In(array of range(config.works))
        The slot of each bank's work, from the cycle after ``start``.
    tile_0, tile_1, ... : Out(stream of :attr:`Jobs.tile <hw.pim.work.layouts.Jobs.tile>`)
        Tiles for each bank; a tile with ``end`` follows the last one of a work.
    unended : Out(config.banks)
        Banks that have started and not yet taken ``end``.
    dealt : Out(config.works)
        Slots without tiles left.
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        self._jobs = jobs = Jobs(config)
        slot = range(config.works)
        super().__init__(
            {
                "accept": In(1),
                "work": In(jobs.checked),
                "start": In(1),
                "slot": In(slot),
                "banks": In(config.banks),
                "owner": In(data.ArrayLayout(slot, config.banks)),
                **{
                    f"tile_{bank}": Out(stream.Signature(jobs.tile)) for bank in range(config.banks)
                },
                "unended": Out(config.banks),
                "dealt": Out(config.works),
            }
        )

    @property
    def _place(self) -> data.StructLayout:
        """Layout of the next tile's begin.

        With ``end`` there is no next tile. ``vector`` counts the first vectors through all lines.
        """
        tile = self._jobs.tile
        return data.StructLayout(
            {
                **{name: tile[name].shape for name in _INDICES},
                # A tile may end beyond the longest line.
                "first": tile["first"].width + 1,
                "vector": self._jobs.checked["first"].shape,
                "end": 1,
            }
        )

    @property
    def _extents(self) -> data.StructLayout:
        """Layout of a work's sizes and of its largest tile.

        An ``elements`` that is not 0 is the number of a tile's first vectors.
        """
        tile, work = self._jobs.tile, self._jobs.work
        return data.StructLayout(
            {
                **{name: self._jobs.checked[name].shape for name in _INDICES},
                "lines": 1,
                "line": work["line"].shape,
                "add_only": 1,
                "elements": tile["first_count"].shape,
                "depth": 2,
                "seconds": tile["second_count"].shape,
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        banks, works = self._config.banks, self._config.works
        tile, offered, taken = Signal(self._jobs.tile), Signal(banks), Signal(banks)
        tiles = [getattr(self, f"tile_{bank}") for bank in range(banks)]
        for number, port in enumerate(tiles):
            m.d.comb += [port.payload.eq(tile), port.valid.eq(offered[number])]
        m.d.comb += taken.eq(offered & Cat(port.ready for port in tiles))
        m.d.sync += [
            offered.eq(offered & ~taken),
            self.unended.eq(
                (self.unended & ~Mux(tile.end, taken, 0)) | Mux(self.start, self.banks, 0)
            ),
        ]

        m.submodules.extents = extents = memory.Memory(shape=self._extents, depth=works, init=[])
        m.submodules.places = places = memory.Memory(shape=self._place, depth=works, init=[])
        self._accept(m, extents.write_port())
        extent, place = (kept.read_port(domain="comb") for kept in (extents, places))
        move = places.write_port()

        asking, behind, bank = Signal(banks), Signal(banks), Signal(banks)
        slot = Signal(range(works))
        for number in range(banks):
            with m.If(bank[number]):
                m.d.comb += slot.eq(self.owner[number])
        m.d.comb += [
            asking.eq(Cat(port.ready for port in tiles) & self.unended & ~offered),
            extent.addr.eq(slot),
            place.addr.eq(slot),
            move.addr.eq(slot),
        ]
        ahead = self._ahead(m, extent.data, place.data, bank)
        limit = Signal(self._jobs.tile["first_count"].shape)
        with m.FSM():
            with m.State("PICK"), m.If(asking.any()):
                first = Mux((asking & behind).any(), asking & behind, asking)
                m.d.sync += bank.eq(first & -first)
                m.next = "MEASURE"
            with m.State("MEASURE"):
                m.d.sync += behind.eq(-bank & ~bank)
                m.next = "LIMIT"
            with m.State("LIMIT"):
                self._limit(m, extent.data, ahead, limit)
                m.next = "DEAL"
            with m.State("DEAL"), m.If(~self.accept):
                m.d.comb += move.en.eq(1)
                m.d.sync += [offered.eq(bank), self.dealt.eq(self.dealt | (move.data.end << slot))]
                self._deal(m, extent.data, place.data, ahead, limit, tile, move.data)
                m.next = "PICK"
                with m.If(extent.data.lines & ~place.data.end & (limit >= ahead.line)):
                    m.next = "LINE"
            with m.State("LINE"):
                # An accepted work uses the write port; then this step repeats.
                past = Signal()
                m.d.comb += [
                    past.eq(place.data.first >= extent.data.line),
                    move.en.eq(past),
                    move.data.eq(place.data),
                    move.data.first.eq(place.data.first - extent.data.line),
                    move.data.outer1.eq(place.data.outer1 + 1),
                ]
                with m.If(~past):
                    m.next = "PICK"
        with m.If(self.accept):
            m.d.comb += [move.addr.eq(self.slot), move.data.eq(0), move.en.eq(1)]
            m.d.sync += self.dealt.eq(self.dealt & ~(1 << self.slot))
        return m

    def _accept(self, m: Any, write: Any) -> None:
        work = self.work
        plan = work.work.plan
        m.d.comb += [
            write.en.eq(self.accept),
            write.addr.eq(self.slot),
            *(write.data[name].eq(work[name]) for name in _INDICES),
            write.data.lines.eq(work.work.lines),
            write.data.line.eq(work.work.line),
            write.data.add_only.eq(work.add_only),
            write.data.elements.eq(work.work.elementwise << plan.chunk),
            write.data.depth.eq(plan.depth),
            write.data.seconds.eq(1 << plan.seconds),
        ]

    def _ahead(self, m: Any, extent: Any, place: Any, bank: Any) -> Any:
        """Return what is left from ``place`` on, and the lanes of ``bank``, one cycle later."""
        tile = self._jobs.tile
        ahead = Signal(
            data.StructLayout(
                {
                    "lanes": range(MAX_LANES + 1),
                    "first": self._jobs.checked["first"].shape,
                    "second": tile["second"].shape,
                    "line": tile["first"].shape,
                    "outer1_last": 1,
                    "outer2_last": 1,
                }
            )
        )
        placement = self._config.placement
        both = tuple(map(min, placement.multipliers, placement.adders))
        lanes = Mux(extent.add_only, selected(placement.adders, bank), selected(both, bank))
        m.d.sync += [
            ahead.lanes.eq(lanes),
            ahead.first.eq(extent.first - place.vector),
            ahead.line.eq(extent.line - place.first),
            ahead.second.eq(extent.second - place.second),
            ahead.outer1_last.eq(extent.lines | (place.outer1 + 1 == extent.outer1)),
            ahead.outer2_last.eq(place.outer2 + 1 == extent.outer2),
        ]
        return ahead

    def _limit(self, m: Any, extent: Any, ahead: Any, limit: Any) -> None:
        """Register the most first vectors of the next tile, valid one cycle later."""
        vectors: Any = Signal(2)
        """Binary logarithm of the vectors per lane."""
        few = extent.seconds < INTERLEAVE
        for power in range(1, 4):
            needed = (ahead.lanes << power) - ahead.lanes
            with m.If((extent.depth >= power) & (few | (ahead.first > needed))):
                m.d.comb += vectors.eq(power)
        m.d.sync += limit.eq(Mux(extent.elements.any(), extent.elements, ahead.lanes << vectors))

    def _deal(
        self,
        m: Any,
        extent: Any,
        place: Any,
        ahead: Any,
        limit: Any,
        tile: Any,
        following: Any,
    ) -> None:
        """Describe the tile at ``place``, and the place of the following tile."""
        row, block, plane = Signal(), Signal(), Signal()
        m.d.comb += [
            row.eq(ahead.first <= limit),
            block.eq(row & (ahead.second <= extent.seconds)),
            plane.eq(block & ahead.outer1_last),
            following.first.eq(Mux(row, 0, place.first + limit)),
            following.vector.eq(Mux(row, 0, place.vector + limit)),
            following.second.eq(Mux(block, 0, place.second + Mux(row, extent.seconds, 0))),
            following.outer1.eq(Mux(plane | (extent.lines & row), 0, place.outer1 + block)),
            following.outer2.eq(place.outer2 + plane),
            following.end.eq(place.end | (plane & ahead.outer2_last)),
        ]
        m.d.sync += [
            *(tile[name].eq(place[name]) for name in (*_INDICES, "end")),
            tile.first_count.eq(Mux(row, ahead.first, limit)),
            tile.second_count.eq(Mux(ahead.second <= extent.seconds, ahead.second, extent.seconds)),
        ]
