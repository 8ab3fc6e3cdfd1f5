"""DDR4 controller of one channel: AXI4 in, DRAM commands out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4Signature
from hw.dram.activity import Activity
from hw.dram.columns import ColumnScheduler
from hw.dram.config import ControllerConfig
from hw.dram.fabric_timing import COLUMN_SLOT, FabricTiming
from hw.dram.frontend import AxiFrontEnd
from hw.dram.geometry import BURST_COLUMNS, DramGeometry
from hw.dram.interface import DramCommand, DramSignature
from hw.dram.refresh import RefreshScheduler
from hw.dram.request import RequestQueue
from hw.dram.rows import TIME_BITS, RowScheduler
from hw.dram.timing import DramTiming
from hw.logic.line import LINE_BITS

__all__ = ["COUNTERS", "COUNTER_BITS", "RESERVED_LINES", "Ddr4Controller"]

RESERVED_LINES = 512
"""Lines of read buffer that keep the bus full while room for eight bursts is reserved; the depth
of a block RAM."""

COUNTERS = ("refreshes", "activates", "precharges", "reads", "writes", "turns")
COUNTER_BITS = 48


class Ddr4Controller(wiring.Component):
    """Serves AXI bursts in order from open rows, with the rows of queued bursts opened ahead.

    The clock is four DRAM clocks long; one column command a cycle keeps the data bus full. Read
    latency to a closed bank with DDR4-1600: 13 cycles from the cycle of the AR handshake to the
    cycle of the first RVALID, without ``reserve`` 12. The initialisation sequence of JESD79-4
    (reset, mode registers, calibration, some milliseconds) is reduced to a fixed wait; the DRAM
    counts as trained. Requests are accepted from the first cycle on.

    Parameters
    ----------
    geometry, timing
        Organisation and timing of the part.
    addr_width, id_width
        Widths of the AXI port; byte addresses of the channel start at 0. Raises ``ValueError`` if
        the capacity does not fit.
    config
        See :class:`~hw.dram.config.ControllerConfig`.
    read_valid
        Take the time of read data from the DRAM's side; see :class:`DramSignature`.
    reserve
        Keep room for the data of each read, in a buffer of at least :data:`RESERVED_LINES` lines.
        Any manager works then. False saves the buffer for a manager that takes all read data
        without waiting, such as a channel's kernel and bridge, or a memory-node's links.

    Members
    -------
    s_axi : In(:class:`AXI4Signature`)
        512 data bits; INCR bursts of 1 to 64 beats of 64 bytes that do not cross 4 KB, from an
        address rounded down to 64 bytes; SLVERR answers all others, DECERR those beyond the memory,
        and nothing is touched. Reads are answered in the order of their addresses, so are writes,
        and neither waits for what the manager does with the other.
    dram : Out(:class:`DramSignature`)
        RD and WR in slot 0, the others in slots that depend on the timing.
    prompt : In(1)
        Refreshes are not postponed: for a user that can wait for one, but not for a batch.
    idle : Out(1)
        Nothing is queued or in flight, and no data are left in a buffer; if ``prompt``, no
        refresh is due either.
    activity : Out(:class:`~hw.dram.activity.Activity`)
        What the cycle before was used for.
    refreshes, activates, precharges, reads, writes : Out(48)
        Commands given since reset. PREA counts as one precharge.
    turns : Out(48)
        How often a column command had another direction than the one before it; a read is taken to
        have been before the first.
    longest_refresh_gap : Out(48)
        The longest time between two refreshes since reset, the one in progress included, in
        fabric cycles.

    Examples
    --------
    >>> from hw.dram.presets import TINY
    >>> from hw.verilog.writer import to_verilog
    >>> sizes = {"geometry": TINY.geometry, "timing": TINY.timing}
    >>> text = to_verilog(Ddr4Controller(**sizes, addr_width=20, id_width=1), "controller")
    >>> "ColumnScheduler" in text, text.count("endmodule")
    (True, 7)
    """

    def __init__(
        self,
        *,
        geometry: DramGeometry,
        timing: DramTiming,
        addr_width: int,
        id_width: int,
        config: ControllerConfig | None = None,
        read_valid: bool = False,
        reserve: bool = True,
    ) -> None:
        self._read_valid = read_valid
        self.geometry = geometry
        self.timing = timing
        config = config or ControllerConfig()
        if reserve and config.read_buffer_lines < RESERVED_LINES:
            config = replace(config, read_buffer_lines=RESERVED_LINES)
        self.config = config
        if geometry.capacity_bytes > 1 << addr_width:
            raise ValueError(
                f"addr_width must be at least {geometry.capacity_bytes.bit_length() - 1} for "
                f"{geometry.capacity_bytes} bytes, got {addr_width!r}"
            )
        fabric_timing = FabricTiming.of(timing)
        self._fabric_timing = fabric_timing
        self._front_end = AxiFrontEnd(
            geometry=geometry,
            addr_width=addr_width,
            id_width=id_width,
            write_buffer_lines=config.write_buffer_lines,
            read_buffer_lines=config.read_buffer_lines,
            run_length=config.run_length,
            queue_depth=config.queue_depth,
            reserve=reserve,
        )
        self._queue = RequestQueue(geometry=geometry, depth=config.queue_depth)
        self._rows = RowScheduler(geometry=geometry, timing=fabric_timing)
        self._columns = ColumnScheduler(geometry=geometry, timing=fabric_timing)
        self._refresh = RefreshScheduler(
            timing=fabric_timing,
            enabled=config.refresh,
            postpone=config.refresh_postpone,
            pull_in=config.refresh_pull_in,
            idle_cycles=config.refresh_idle_cycles,
            reset_cycles=config.reset_cycles,
        )
        super().__init__(
            {
                "s_axi": In(
                    AXI4Signature(addr_width=addr_width, data_width=LINE_BITS, id_width=id_width)
                ),
                "dram": Out(DramSignature(geometry, read_valid=read_valid)),
                "prompt": In(1),
                "idle": Out(1),
                "activity": Out(Activity),
                **{name: Out(COUNTER_BITS) for name in (*COUNTERS, "longest_refresh_gap")},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        timing = self._fabric_timing
        front, queue, rows = self._front_end, self._queue, self._rows
        columns, refresh = self._columns, self._refresh
        m: Any = Module()
        m.submodules.front_end = front
        m.submodules.queue = queue
        m.submodules.rows = rows
        m.submodules.columns = columns
        m.submodules.refresh = refresh
        wiring.connect(m, wiring.flipped(self.s_axi), front.axi)

        now = Signal(TIME_BITS)
        m.d.sync += now.eq(now + 1)
        column_read = Signal()
        column_write = Signal()
        m.d.comb += [
            column_read.eq(columns.issue & ~columns.write),
            column_write.eq(columns.issue & columns.write),
            queue.push.eq(front.push),
            queue.request.eq(front.request),
            front.room.eq(queue.room),
            # One burst is in work; one more keeps the rows prepared ahead.
            front.low.eq(queue.level <= 2),
            rows.now.eq(now),
            rows.hold.eq(refresh.hold),
            rows.flush.eq(refresh.flush),
            rows.plan_valid.eq(queue.plan_valid),
            rows.plan.eq(queue.plan),
            rows.plan_sequence.eq(queue.plan_sequence),
            queue.plan_next.eq(rows.plan_next),
            queue.prepared.eq(rows.prepared),
            queue.replan.eq(refresh.flush),
            rows.column_sequence.eq(queue.column_sequence),
            rows.column_bank.eq(columns.bank),
            rows.column_issue.eq(columns.issue),
            rows.column_write.eq(columns.write),
            columns.hold.eq(refresh.hold),
            columns.valid.eq(queue.column_valid),
            columns.request.eq(queue.column),
            columns.row_ready.eq(rows.column_ready),
            columns.read_room.eq(front.read_room),
            queue.column_next.eq(columns.next),
            refresh.busy.eq(queue.level != 0),
            refresh.activate.eq(rows.activate),
            refresh.read.eq(column_read),
            refresh.write.eq(column_write),
            refresh.any_open.eq(rows.any_open),
            refresh.prompt.eq(self.prompt),
            self.idle.eq(front.idle & ~(self.prompt & refresh.owing)),
        ]

        self._issue(m, column_read, column_write)

        # A command reaches the DRAM in the cycle after the decision; bit i of a pipe is set
        # i + 1 cycles after the decision.
        write_pipe = Signal(timing.write_latency)
        read_pipe = Signal(timing.read_latency + 1)
        m.d.sync += [
            write_pipe.eq(Cat(column_write, write_pipe)),
            read_pipe.eq(Cat(column_read, read_pipe)),
        ]
        m.d.comb += [
            front.write_next.eq(write_pipe[-1]),
            self.dram.write_data.eq(front.write_data),
            self.dram.write_mask.eq(front.write_mask),
            front.written.eq(queue.column_next & columns.write),
            front.read_issue.eq(column_read),
            front.read_valid.eq(self.dram.read_valid if self._read_valid else read_pipe[-1]),
            front.read_data.eq(self.dram.read_data),
        ]

        with m.If(columns.issue):
            m.d.sync += self.activity.eq(Activity.DATA)
        with m.Elif(refresh.hold):
            m.d.sync += self.activity.eq(Activity.REFRESH)
        with m.Elif(queue.level == 0):
            m.d.sync += self.activity.eq(Activity.STARVED)
        with m.Elif(~queue.column_valid | ~rows.column_ready):
            m.d.sync += self.activity.eq(Activity.ROW)
        with m.Elif(~columns.spaced):
            m.d.sync += self.activity.eq(Activity.TURN_AROUND)
        with m.Else():
            m.d.sync += self.activity.eq(Activity.STARVED)

        writing = Signal()
        with m.If(columns.issue):
            m.d.sync += writing.eq(columns.write)
        gap = Signal.like(self.longest_refresh_gap)
        m.d.sync += gap.eq(Mux(refresh.refresh, 1, gap + 1))
        with m.If(gap > self.longest_refresh_gap):
            m.d.sync += self.longest_refresh_gap.eq(gap)

        events = {
            "refreshes": refresh.refresh,
            "activates": rows.activate,
            "precharges": rows.precharge | refresh.precharge_all,
            "reads": column_read,
            "writes": column_write,
            "turns": columns.issue & (columns.write != writing),
        }
        for name in COUNTERS:
            counter = getattr(self, name)
            with m.If(events[name]):
                m.d.sync += counter.eq(counter + 1)
        return m

    def _issue(self, m: Any, column_read: Signal, column_write: Signal) -> None:
        """Register the commands of this cycle in their slots."""
        timing = self._fabric_timing
        rows, columns, refresh = self._rows, self._columns, self._refresh

        def slot(index: int) -> tuple[Any, Any, Any]:
            """Return command, {bank group, bank} and address of a slot."""
            command, group, bank, address = (
                getattr(self.dram, f"{name}_p{index}")
                for name in ("command", "bank_group", "bank", "address")
            )
            return command, Cat(bank, group), address

        command, bank, address = slot(COLUMN_SLOT)
        m.d.sync += [
            command.eq(DramCommand.NOP),
            bank.eq(columns.bank),
            address.eq(Cat(Const(0, BURST_COLUMNS.bit_length() - 1), columns.column_burst)),
        ]
        with m.If(column_write):
            m.d.sync += command.eq(DramCommand.WR)
        with m.Elif(column_read):
            m.d.sync += command.eq(DramCommand.RD)

        command, bank, address = slot(timing.activate_slot)
        m.d.sync += [
            command.eq(DramCommand.NOP),
            bank.eq(rows.activate_bank),
            address.eq(rows.activate_row),
        ]
        with m.If(refresh.refresh):
            m.d.sync += command.eq(DramCommand.REF)
        with m.Elif(rows.activate):
            m.d.sync += command.eq(DramCommand.ACT)

        command, bank, _ = slot(timing.precharge_slot)
        m.d.sync += [command.eq(DramCommand.NOP), bank.eq(rows.precharge_bank)]
        with m.If(refresh.precharge_all):
            m.d.sync += command.eq(DramCommand.PREA)
        with m.Elif(rows.precharge):
            m.d.sync += command.eq(DramCommand.PRE)
