"""Pieces of a bank's work: the work, its tiles, their chunks, and blocks of second vectors.

Each piece keeps its position and can step to the next one; :mod:`hw.pim.bank.sequencer` decides
when.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Mux, Signal, signed

from hw.float.parts import saturate, wire
from hw.pim.shared_multiplier import Sum
from hw.pim.work.layouts import (
    BEAT_WORDS,
    COORDINATE_BITS,
    NO_LINE,
    VECTOR_BITS,
    Jobs,
    Padded,
    Second,
)

__all__ = ["Block", "Chunk", "Tile", "WholeWork"]

_WITHOUT_WRAP = (1 << 24) - 1
"""Columns of a row that never ends: longer than any buffer."""


class WholeWork:
    """Values that depend on the work alone: its kind, and sums computed when it starts."""

    def __init__(self, m: Any, jobs: Jobs, work: Any) -> None:
        self._work = work
        self.wraps = {
            name: Signal(jobs.word_bits, name=name)
            for name in ("first_row", "first_channel", "second_row", "second_channel")
        }
        """Distance from the last element of an operand's row or channel to the next element."""
        self.above, self.left = (
            Signal(signed(COORDINATE_BITS), name=name) for name in ("above", "left")
        )
        """Row and column of the first padded element."""
        self.chunk_taps = Signal(jobs.k_bits, name="whole_taps")
        """Taps of a chunk with all the channels of the plan."""
        self.shared = work.second_kind == Second.SHARED
        self.only_sums = ~work.elementwise & (work.second_kind == Second.NONE)
        self.has_second = work.elementwise | (work.second_kind != Second.NONE)
        # Unsigned: a simulator would compute a sign again for each bit of a wider number.
        self._rows = wire(m, (work.tap_rows - 1)[:16], "rows")
        self._columns = wire(m, (work.tap_columns - 1)[:24], "columns")

    def sums(self) -> list[Sum]:
        """Return the sums to compute when the work starts."""
        work = self._work
        return [
            *self._wrap("first", work.first),
            *self._wrap("second", work.second),
            Sum(self.chunk_taps, 0, [(work.plan.channels, work.taps)]),
            Sum(self.above, 0, [(work.pad_top, 1)], negative=True),
            Sum(self.left, 0, [(work.pad_left, 1)], negative=True),
        ]

    def _wrap(self, name: str, nest: Any) -> list[Sum]:
        row, column = (self._columns, nest.column), (self._rows, nest.row)
        return [
            Sum(self.wraps[f"{name}_row"], nest.row, [row], negative=True),
            Sum(self.wraps[f"{name}_channel"], nest.channel, [row, column], negative=True),
        ]


class Tile:
    """Present tile: first addresses of its operands, and its place in lines of vectors."""

    def __init__(self, jobs: Jobs, work: Any, whole: WholeWork) -> None:
        self._work, self.whole = work, whole
        self.fields = Signal(jobs.tile, name="tile")
        self.bases = {
            name: Signal(jobs.word_bits, name=f"{name}_base")
            for name in ("first", "second", "result")
        }
        self.y, self.x = (Signal(signed(COORDINATE_BITS), name=name) for name in ("y", "x"))
        self.line, self.line_left = (
            Signal(VECTOR_BITS, name=name) for name in ("line", "line_left")
        )

    def sums(self) -> list[Sum]:
        """Return the sums to compute when the tile begins."""
        fields, work, bases = self.fields, self._work, self.bases
        own = work.elementwise | (work.second_kind == Second.PRIVATE)
        second_index = Mux(own, fields.first, fields.second)
        padded_index = Mux(work.padded == Padded.FIRST, fields.first, fields.second)
        indices = {"first": fields.first, "second": second_index}

        def outer(nest: Any) -> list[tuple[Any, Any]]:
            return [(fields[name], nest[name]) for name in ("outer1", "outer2")]

        return [
            *(
                Sum(
                    bases[name],
                    work[name].address,
                    [*outer(work[name]), (index, work[name].vector)],
                )
                for name, index in indices.items()
            ),
            Sum(
                bases["result"],
                work.result.address,
                [
                    *outer(work.result),
                    (fields.first, work.result.first),
                    (fields.second, work.result.second),
                ],
            ),
            Sum(self.y, self.whole.above, [(fields.outer1, work.stride)]),
            Sum(self.x, self.whole.left, [(padded_index, work.stride)]),
        ]

    def find_lines(self, m: Any) -> None:
        """Register the length of a line, and the vectors left in the tile's first line."""
        work = self._work
        in_line = wire(m, (work.line - self.fields.first)[: len(work.line)], "in_line")
        m.d.sync += [
            target.eq(Mux(work.lines, saturate(vectors, VECTOR_BITS), NO_LINE))
            for target, vectors in ((self.line, work.line), (self.line_left, in_line))
        ]

    def elements(self, name: str) -> dict[str, Any]:
        """Return the walk of an elementwise operand.

        An element that repeats is copied to one beat only.
        """
        count = self.fields.first_count
        copies = Mux(count < BEAT_WORDS, count, BEAT_WORDS)
        return {
            "address": self.bases[name],
            "vectors": 1,
            "group_size": 1,
            "line": NO_LINE,
            "line_left": NO_LINE,
            "length": Mux(self._work[f"{name}_repeats"], copies, count),
            "column": self._work[name].vector,
            "columns": _WITHOUT_WRAP,
            "rows": 1,
        }


class Chunk:
    """Present chunk of a tile: whole channels, or taps of one channel."""

    def __init__(self, m: Any, jobs: Jobs, work: Any, tile: Tile) -> None:
        self._work, self._tile = work, tile
        plan = work.plan
        # First element of the chunk.
        self.channel, self.tap = Signal(16, name="channel"), Signal(32, name="tap")
        self._tap_row, self._tap_column = Signal(16, name="tap_row"), Signal(24, name="tap_column")
        self.addresses = {
            name: Signal(jobs.word_bits, name=f"{name}_chunk") for name in ("first", "second")
        }
        self._y, self.x, self.in_line_x = (
            Signal(signed(COORDINATE_BITS), name=name)
            for name in ("chunk_y", "chunk_x", "in_line_x")
        )
        self._rest_taps = Signal(jobs.k_bits, name="rest_taps")
        """Taps left in all channels."""
        self._channels_left = Signal(16, name="channels_left")
        self._capacity = Signal(jobs.k_bits, name="capacity")
        self._whole_channels = Signal(name="whole")
        last_channels = Signal()
        self.last_taps = Signal(name="last_taps")
        """High if the chunk ends with a channel."""
        taps_left = Signal(32)
        self.length = Signal(jobs.k_bits, name="length")
        self.complete = Signal(name="complete")
        """High if the chunk is the tile's last one."""
        m.d.comb += [
            self._channels_left.eq(work.channels - self.channel),
            self._capacity.eq(1 << plan.chunk),
            self._whole_channels.eq(plan.channels != 0),
            last_channels.eq(self._channels_left <= Mux(self._whole_channels, plan.channels, 1)),
            taps_left.eq(work.taps - self.tap),
            self.last_taps.eq(self._whole_channels | (taps_left <= self._capacity)),
            self.complete.eq(last_channels & self.last_taps),
            self.length.eq(
                Mux(
                    self._whole_channels,
                    Mux(last_channels, self._rest_taps, tile.whole.chunk_taps),
                    Mux(self.last_taps, taps_left, self._capacity),
                )
            ),
        ]

    def sums(self) -> list[Sum]:
        """Return the sums to compute when the chunk begins."""
        work, tile = self._work, self._tile

        def offsets(nest: Any) -> list[tuple[Any, Any]]:
            return [
                (self.channel, nest.channel),
                (self._tap_row, nest.row),
                (self._tap_column, nest.column),
            ]

        return [
            *(
                Sum(address, tile.bases[name], offsets(work[name]))
                for name, address in self.addresses.items()
            ),
            Sum(self._y, tile.y, [(self._tap_row, work.dilation)]),
            Sum(self.x, tile.x, [(self._tap_column, work.dilation)]),
            Sum(self._rest_taps, 0, [(self._channels_left, work.taps)]),
        ]

    def vectors(
        self, name: str, *, address: Any, vectors: Any, group_size: Any, x: Any
    ) -> dict[str, Any]:
        """Return the walk of a reduction's operand."""
        work, tile, wraps = self._work, self._tile, self._tile.whole.wraps
        nest, is_first = work[name], name == "first"
        lines: dict[str, Any] = {"line": tile.line, "line_left": tile.line_left}
        if is_first:
            lines["line_x"] = self.x - self.in_line_x
        else:
            lines = {key: Mux(tile.whole.shared, NO_LINE, size) for key, size in lines.items()}
        return {
            "address": address,
            "vectors": vectors,
            "group_size": group_size,
            "vector": nest.vector,
            "length": self.length,
            "across": work[f"{name}_across"],
            "column": nest.column,
            "row_wrap": wraps[f"{name}_row"],
            "channel_wrap": wraps[f"{name}_channel"],
            "tap_column": self._tap_column,
            "tap_row": self._tap_row,
            "columns": work.tap_columns,
            "rows": work.tap_rows,
            "bounded": work.padded == (Padded.FIRST if is_first else Padded.SECOND),
            "y": self._y,
            "x": x,
            "vector_x": work.stride,
            **lines,
            "line_wrap": work[f"{name}_line_wrap"],
            "dilation": work.dilation,
            "height": work.image_height,
            "width": work.image_width,
        }

    def restart(self, m: Any) -> None:
        """Go to the tile's first chunk."""
        m.d.sync += [self.channel.eq(0), *self._first_tap()]

    def advance_channels(self, m: Any) -> None:
        """Go to the next chunk, which begins with a channel."""
        channels = Mux(self._whole_channels, self._work.plan.channels, 1)
        m.d.sync += [self.channel.eq(self.channel + channels), *self._first_tap()]

    def advance_taps(self, m: Any) -> None:
        """Go to the next chunk of the same channel, ignoring the end of the row."""
        m.d.sync += [
            self.tap.eq(self.tap + self._capacity),
            self._tap_column.eq(self._tap_column + self._capacity),
        ]

    @property
    def is_beyond_row(self) -> Any:
        """High if, after :meth:`advance_taps`, the chunk begins behind the end of its row."""
        return self._tap_column >= self._work.tap_columns

    def wrap_row(self, m: Any) -> None:
        """Move the chunk's begin into the next row."""
        m.d.sync += [
            self._tap_column.eq(self._tap_column - self._work.tap_columns),
            self._tap_row.eq(self._tap_row + 1),
        ]

    def _first_tap(self) -> list[Any]:
        return [position.eq(0) for position in (self._tap_row, self._tap_column, self.tap)]


class Block:
    """Second vectors of a tile that share one buffer half."""

    def __init__(self, m: Any, jobs: Jobs, work: Any, tile: Tile) -> None:
        self._work, self._word_bits = work, jobs.word_bits
        self.start = Signal(12, name="block")
        """Number of the block's first vector in the tile."""
        self.count = Signal(12, name="block_count")
        self.address = Signal(jobs.word_bits, name="block_address")
        self.x = Signal(signed(COORDINATE_BITS), name="block_x")
        self.last = Signal(name="last_block")
        self._size = Signal(12, name="block_size")
        block_left = Signal(12)
        shared = tile.whole.shared
        m.d.comb += [
            block_left.eq(tile.fields.second_count - self.start),
            self._size.eq(1 << work.plan.block),
            self.last.eq(~shared | (block_left <= self._size)),
            self.count.eq(Mux(~shared, 1, Mux(self.last, block_left, self._size))),
        ]

    def restart(self, m: Any, chunk: Chunk) -> None:
        """Go to the chunk's first block."""
        m.d.sync += [
            self.start.eq(0),
            self.address.eq(chunk.addresses["second"]),
            self.x.eq(chunk.x),
        ]

    def advance(self, m: Any) -> None:
        """Go to the next block."""
        work, plan = self._work, self._work.plan
        m.d.sync += [
            self.start.eq(self.start + self._size),
            self.address.eq(self.address + (work.second.vector << plan.block)[: self._word_bits]),
            self.x.eq(self.x + (work.stride << plan.block)),
        ]
