"""Setup of a walk: lengths of its rows and start coordinates, computed before it begins."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import PimConfig
from hw.pim.work.layouts import Jobs

__all__ = ["NEAR_BITS", "WalkSetup", "near"]

NEAR_BITS = 18
"""Width of a signed coordinate that saturates at 2 ** 16, beyond every image."""


def near(coordinate: Any) -> Any:
    """Return a coordinate of at least -2 ** 16, saturated to :data:`NEAR_BITS`."""
    far = (coordinate >= 0) & (coordinate[16:] != 0)
    return Mux(far, 1 << 16, coordinate[:NEAR_BITS].as_signed())


class WalkSetup(wiring.Component):
    """Products for a walk, computed on one multiplier in four cycles.

    In an unbounded walk, rows that are contiguous in memory are joined to one, and so are channels.

    Members
    -------
    walk : In(:attr:`Jobs.walk <hw.pim.work.layouts.Jobs.walk>`)
    valid, taken : In(1)
        There is a walk. It must hold still until the cycle with ``taken``.
    done : Out(1)
        The outputs below are valid.
    columns, first_columns : Out(:attr:`Jobs.k_bits <hw.pim.work.layouts.Jobs.k_bits>`)
        Contiguous elements of a row, and of the rest of the first row. All ones if that is more
        than any vector has.
    rows, first_rows : Out(16)
        Such rows in a channel, and in the rest of the first channel.
    row_x, line_row_x, channel_y : Out(signed(:data:`NEAR_BITS`))
        Coordinates of column 0, in the first line and in the others, and of row 0.
    """

    def __init__(self, config: PimConfig) -> None:
        jobs = Jobs(config)
        self._k_bits = jobs.k_bits
        super().__init__(
            {
                "walk": In(jobs.walk),
                "valid": In(1),
                "taken": In(1),
                "done": Out(1),
                "columns": Out(jobs.k_bits),
                "first_columns": Out(jobs.k_bits),
                "rows": Out(16),
                "first_rows": Out(16),
                "row_x": Out(signed(NEAR_BITS)),
                "line_row_x": Out(signed(NEAR_BITS)),
                "channel_y": Out(signed(NEAR_BITS)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        walk = self.walk
        rows_join, channels_join = Signal(), Signal()
        step = Signal(2)
        long, short, product = (
            Signal(bits, name=name, reset_less=True)
            for name, bits in (("long", 24), ("short", 16), ("product", 40))
        )

        def few(count: Any) -> Any:
            """Saturate ``count`` to all ones, which is more elements than any vector has."""
            most = (1 << self._k_bits) - 1
            return Mux(channels_join | (count[self._k_bits :] != 0), most, count[: self._k_bits])

        with m.If(~self.valid | self.taken):
            m.d.sync += [step.eq(0), self.done.eq(0)]
        with m.Elif(~self.done):
            m.d.sync += [step.eq(step + 1), product.eq(long * short)]
            extent = Mux(rows_join, product, walk.columns)
            with m.Switch(step):
                with m.Case(0):
                    joins = ~walk.bounded & (walk.row_wrap == walk.column)
                    m.d.sync += [
                        rows_join.eq(joins),
                        channels_join.eq(joins & (walk.channel_wrap == walk.column)),
                        long.eq(Mux(walk.bounded, walk.tap_column, walk.columns)),
                        short.eq(Mux(walk.bounded, walk.dilation, walk.rows)),
                    ]
                with m.Case(1):
                    rows_left = walk.rows - walk.tap_row
                    m.d.sync += [
                        long.eq(Mux(walk.bounded, walk.tap_row, walk.columns)),
                        short.eq(Mux(walk.bounded, walk.dilation, rows_left)),
                        self.rows.eq(Mux(rows_join, 1, walk.rows)),
                        self.first_rows.eq(Mux(rows_join, 1, rows_left)),
                    ]
                with m.Case(2):
                    m.d.sync += [
                        self.columns.eq(few(extent)),
                        self.row_x.eq(near(walk.x - product)),
                        self.line_row_x.eq(near(walk.line_x - product)),
                    ]
                with m.Case(3):
                    left = Signal(40)
                    m.d.comb += left.eq(extent - walk.tap_column)
                    m.d.sync += [
                        self.first_columns.eq(few(left)),
                        self.channel_y.eq(near(walk.y - product)),
                        self.done.eq(1),
                    ]
        return m
