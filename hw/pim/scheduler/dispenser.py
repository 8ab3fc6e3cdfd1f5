"""Cuts works into tiles, and gives them to the banks that ask."""

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
    """Gives each part of a work to one of its banks, whichever asks first.

    A bank asks by ``ready``, and then waits for its tile. Banks that ask are served in turn, one
    every four cycles; a bank that asks alone has its tile four cycles later. A work's tiles go
    with the first vectors fastest, then the second vectors, then outer1, then outer2. A tile has at
    most as many first vectors as are lanes of the bank, times 2 ** ``depth``, or 2 ** ``chunk``
    elements of an elementwise work; and 2 ** ``seconds`` second vectors.

    With ``lines`` outer1 counts the lines of first vectors, and tiles go on from line to line. Each
    line that a tile ends delays the next one by a cycle, and the first of them by one more; the
    last lines of all together by one.

    A lane's eight results in turn are the product of a power of two of first vectors and one of
    second vectors. So where there are eight second vectors, what is left of the first vectors is
    cut into tiles that leave no turn idle: for three vectors a lane they are one of two and one of
    one.

    Parameters
    ----------
    config
        The banks, with their units, and the works at once.

    Members
    -------
    accept : In(1)
        A work takes ``slot``. At most every other cycle.
    work : In(:attr:`Jobs.checked <hw.pim.work.layouts.Jobs.checked>`)
        With ``accept``: the work.
    start : In(1)
        ``slot``'s work starts on ``banks``, which are none of those that it has.
    slot : In(range(config.works))
    banks : In(config.banks)
    owner : In(array of range(config.works))
        The slot of each bank's work, from the cycle after ``start``.
    tile_0, tile_1, ... : Out(stream of :attr:`Jobs.tile <hw.pim.work.layouts.Jobs.tile>`)
        Tiles for each bank; after the last one of a work one with ``end``.
    unended : Out(config.banks)
        Banks that have started, and not yet taken ``end``.
    dealt : Out(config.works)
        Slots of whose works no tile is left.
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
        """Where the next tile begins.

        ``end``: there is none. ``vector`` counts the first vectors through all lines.
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
        """What a work is cut from, and how: with ``elements``, a tile has so many first vectors."""
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
        for number, each in enumerate(tiles):
            m.d.comb += [each.payload.eq(tile), each.valid.eq(offered[number])]
        m.d.comb += taken.eq(offered & Cat(each.ready for each in tiles))
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
            asking.eq(Cat(each.ready for each in tiles) & self.unended & ~offered),
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
                # With a work that is accepted nothing is written, and this is done again.
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
        """What is left from ``place`` on, a cycle later, and the lanes that ``bank`` has for it."""
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
        """The most first vectors that the next tile takes, a cycle later."""
        vectors: Any = Signal(2)
        """Logarithm of the vectors of a lane."""
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
        """The tile at ``place``, and the place that follows."""
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
