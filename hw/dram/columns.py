"""Column scheduler: it issues the reads and writes of the oldest request, one a fabric cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dram.fabric_timing import FabricTiming
from hw.dram.geometry import DramGeometry
from hw.dram.request import request_layout
from hw.logic.line import AXI_BURST_BITS

__all__ = ["ColumnScheduler"]


class ColumnScheduler(wiring.Component):
    """Issues the lines of the oldest request in order, without a gap where the timing allows.

    Lines alternate between two bank groups, so that tCCD_S holds within a burst. This scheduler
    keeps tCCD_L, the bus turn-arounds and tWTR; the row scheduler reports tRCD.

    Members
    -------
    hold : In(1)
        Issue nothing.
    valid, request, next : In(1), In(request), Out(1)
        The oldest request with its rows prepared; ``next`` removes it.
    row_ready : In(1)
        tRCD is over in bank ``bank``.
    read_room : In(1)
        There is room for the data of one more read.
    issue, write : Out(1)
        Issue a column command now; its direction.
    spaced : Out(1)
        The spacing of columns lets the oldest request issue.
    bank, column_burst : Out(bank bits), Out(column burst bits)
        Where the column command goes: {bank group, bank} and column / 8. ``bank`` is valid whenever
        ``valid`` is.
    """

    def __init__(self, *, geometry: DramGeometry, timing: FabricTiming) -> None:
        self._geometry = geometry
        self._timing = timing
        super().__init__(
            {
                "hold": In(1),
                "valid": In(1),
                "request": In(request_layout(geometry)),
                "next": Out(1),
                "row_ready": In(1),
                "read_room": In(1),
                "issue": Out(1),
                "write": Out(1),
                "spaced": Out(1),
                "bank": Out(geometry.bank_group_bits + geometry.bank_bits),
                "column_burst": Out(geometry.column_burst_bits),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        geometry, timing = self._geometry, self._timing
        m: Any = Module()

        beat = Signal(AXI_BURST_BITS)
        offset = Signal(AXI_BURST_BITS)
        group = Signal(geometry.bank_group_bits)
        line = self.request.line
        m.d.comb += [
            offset.eq(line.offset + beat),
            group.eq(Cat(offset[0], line.bank_group_high)),
            self.bank.eq(Cat(line.bank, group)),
            self.column_burst.eq(Cat(offset[1:], line.column_high)),
            self.write.eq(self.request.write),
        ]

        same_group = Const(0)
        if timing.column_to_column_same_group > 1:
            just_issued = Signal()
            last_group = Signal.like(group, reset_less=True)
            m.d.sync += just_issued.eq(self.issue)
            with m.If(self.issue):
                m.d.sync += last_group.eq(group)
            same_group = just_issued & (last_group == group)

        # A counter per group instead of a time stamp, as the group is known late in the cycle.
        group_waits = [
            Signal(range(timing.write_to_read_same_group + 1), name=f"no_read_in_{index}_for")
            for index in range(geometry.bank_groups)
        ]
        for index, wait in enumerate(group_waits):
            with m.If(self.issue & self.write & (group == index)):
                m.d.sync += wait.eq(timing.write_to_read_same_group - 1)
            with m.Elif(wait != 0):
                m.d.sync += wait.eq(wait - 1)
        group_may_read = Cat(wait == 0 for wait in group_waits)
        no_read_for = Signal(range(timing.write_to_read + 1))
        no_write_for = Signal(range(timing.read_to_write + 1))
        may_read = Signal()
        may_write = Signal()
        m.d.comb += [
            may_read.eq((no_read_for == 0) & group_may_read.bit_select(group, 1)),
            may_write.eq(no_write_for == 0),
            self.spaced.eq(Mux(self.write, may_write, may_read) & ~same_group),
            self.issue.eq(
                self.valid
                & self.row_ready
                & self.spaced
                & (self.write | self.read_room)
                & ~self.hold
            ),
            self.next.eq(self.issue & (beat == self.request.length)),
        ]
        with m.If(no_read_for != 0):
            m.d.sync += no_read_for.eq(no_read_for - 1)
        with m.If(no_write_for != 0):
            m.d.sync += no_write_for.eq(no_write_for - 1)
        with m.If(self.issue):
            m.d.sync += beat.eq(Mux(self.next, 0, beat + 1))
            with m.If(self.write):
                m.d.sync += no_read_for.eq(timing.write_to_read - 1)
            with m.Else():
                m.d.sync += no_write_for.eq(timing.read_to_write - 1)
        return m
