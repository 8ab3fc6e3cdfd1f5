"""AXI side of the DRAM controller: it admits bursts in order and buffers their data."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.axi.bus import BURST_INCR, AXI4Signature, Response
from hw.dram.geometry import DramGeometry
from hw.dram.request import request_layout
from hw.logic.counter import step
from hw.logic.line import AXI_BURST_BITS, AXI_BURST_LINES, LINE_BITS, LINE_BYTE_BITS, LINE_BYTES
from hw.logic.storage import NEVER_BOTH
from hw.stream.fifo import StreamFifo

__all__ = ["AxiFrontEnd"]

_ADDRESSES = 4
_READS = 32
_WRITES = 16


class AxiFrontEnd(wiring.Component):
    """Turns AXI bursts into requests, in the order in which it takes them from AR and AW.

    A write becomes a request when all its data is buffered, so a manager may hold write data back
    for any time. Its response comes when its last column is issued. Reads and writes are taken in
    runs of one direction, up to ``run_length`` bursts while the other waits, because a turn of the
    data bus costs time. A run also ends when its direction has nothing to offer and the queue gets
    ``low``.

    Reads and writes share one queue that is served in order, so a read in it must never wait for
    its manager. A manager may take read data only after it could send write data that is queued
    behind this read. With ``reserve`` a read therefore enters the queue only when there is room for
    all its lines. The queue then drains whatever the manager does, and reads and writes never wait
    for each other's manager. Without ``reserve`` a read needs room only when its column is due,
    and the manager must take all read data without waiting.

    Errors: DECERR beyond the capacity; SLVERR for a size other than 64 bytes, a burst type other
    than INCR, or a burst that crosses 4 KB. Such a burst transfers its number of beats but makes no
    request; its read data is meaningless.

    Parameters
    ----------
    geometry, addr_width, id_width, run_length, queue_depth
        See :class:`~hw.dram.controller.Ddr4Controller`.
    write_buffer_lines, read_buffer_lines
        Lines in the buffers; with ``reserve`` the read buffer holds at least three bursts.
    reserve
        Reserve room for read data, as described above.

    Members
    -------
    axi : In(:class:`~hw.axi.bus.AXI4Signature`)
        512 data bits.
    push, request, room, low : Out(1), Out(request), In(1), In(1)
        Puts a request into the queue; ``low`` lets a run end.
    write_next, write_data, write_mask : In(1), Out(512), Out(64)
        The data of the next line are on ``write_data`` and ``write_mask`` (set bits are not
        written) in the next cycle.
    written : In(1)
        The last column of the oldest write is being issued.
    read_room, read_issue : Out(1), In(1)
        A read may be issued; one is being issued.
    read_valid, read_data : In(1), In(512)
        Read data from the DRAM, in the order of issue.
    idle : Out(1)
        No burst is on its way: all responses were taken and all write data are in the DRAM.
    """

    def __init__(
        self,
        *,
        geometry: DramGeometry,
        addr_width: int,
        id_width: int,
        write_buffer_lines: int,
        read_buffer_lines: int,
        run_length: int,
        queue_depth: int,
        reserve: bool,
    ) -> None:
        self._geometry = geometry
        self._id_width = id_width
        self._write_lines = write_buffer_lines
        self._read_lines = read_buffer_lines
        self._run_length = run_length
        self._reserve = reserve
        # More than the queue holds: requests that have left it are answered, too.
        self._responses = 2 * queue_depth
        self._burst = data.StructLayout(
            {"id": id_width, "line": geometry.line_bits, "length": 8, "response": 2}
        )
        super().__init__(
            {
                "axi": In(
                    AXI4Signature(addr_width=addr_width, data_width=LINE_BITS, id_width=id_width)
                ),
                "push": Out(1),
                "request": Out(request_layout(geometry)),
                "room": In(1),
                "low": In(1),
                "write_next": In(1),
                "write_data": Out(LINE_BITS),
                "write_mask": Out(LINE_BYTES),
                "written": In(1),
                "read_room": Out(1),
                "read_issue": In(1),
                "read_valid": In(1),
                "read_data": In(LINE_BITS),
                "idle": Out(1),
            }
        )

    def _checked(self, channel: str) -> Any:
        """Return the burst offered on address channel ``channel``, with its response."""
        addr, length, size, burst, ident = (
            getattr(self.axi, channel + name) for name in ("addr", "len", "size", "burst", "id")
        )
        line = addr[LINE_BYTE_BITS:][: self._geometry.line_bits]
        beyond = addr[LINE_BYTE_BITS + self._geometry.line_bits :].any()
        crosses = line[:AXI_BURST_BITS] + length > AXI_BURST_LINES - 1
        unsupported = (size != LINE_BYTE_BITS) | (burst != BURST_INCR) | crosses
        response = Mux(beyond, Response.DECERR, Mux(unsupported, Response.SLVERR, Response.OKAY))
        return Cat(ident, line, length, response[:2])

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()

        def fifo(name: str, width: int, depth: int) -> SyncFIFO:
            m.submodules[name] = result = SyncFIFO(width=width, depth=depth)
            return result

        width = self._burst.size
        write_addresses = fifo("write_addresses", width, _ADDRESSES)
        write_bursts = fifo("write_bursts", width, _WRITES)
        responses = fifo("responses", self._id_width + 2, self._responses)
        read_addresses = fifo("read_addresses", width, _ADDRESSES)
        read_bursts = fifo("read_bursts", self._id_width + 8 + 2, _READS)
        holds_data = self._take_writes(m, write_addresses, write_bursts)
        line_returned = self._return_reads(m, read_addresses, read_bursts)
        read_fits = self._keep_room(m, line_returned)
        self._admit(m, write_bursts, responses, read_addresses, read_bursts, read_fits)
        self._answer_writes(m, responses)

        # The data of the last write is on its way for one more cycle.
        writing = Signal()
        m.d.sync += writing.eq(self.write_next)
        m.d.comb += self.idle.eq(
            ~(
                writing
                | write_addresses.r_rdy
                | write_bursts.r_rdy
                | responses.r_rdy
                | read_addresses.r_rdy
                | read_bursts.r_rdy
                | holds_data
            )
        )
        return m

    def _take_writes(self, m: Any, write_addresses: SyncFIFO, write_bursts: SyncFIFO) -> Any:
        """Take write addresses and data, and pass on the bursts that have all their data.

        Return whether the buffer holds any data.
        """
        axi = self.axi
        receiving = data.View(self._burst, write_addresses.r_data)
        beat = Signal(8)
        space = Signal(range(self._write_lines + 1), init=self._write_lines)
        accept = Signal()
        store = Signal()
        refused = Signal()
        last = Signal()
        m.d.comb += [
            axi.awready.eq(write_addresses.w_rdy),
            write_addresses.w_en.eq(axi.awvalid),
            write_addresses.w_data.eq(self._checked("aw")),
            refused.eq(receiving.response != Response.OKAY),
            axi.wready.eq(write_addresses.r_rdy & write_bursts.w_rdy & (refused | (space != 0))),
            accept.eq(axi.wready & axi.wvalid),
            store.eq(accept & ~refused),
            last.eq(accept & (beat == receiving.length)),
            write_addresses.r_en.eq(last),
            write_bursts.w_en.eq(last),
            write_bursts.w_data.eq(write_addresses.r_data),
        ]
        with m.If(accept):
            m.d.sync += beat.eq(Mux(last, 0, beat + 1))
        step(m, space, up=self.write_next, down=store)
        self._buffer_data(m, store)
        return space != self._write_lines

    def _buffer_data(self, m: Any, store: Any) -> None:
        """Buffer the data of a beat with ``store``, and output beats in that order."""
        axi = self.axi
        put = Signal(range(self._write_lines))
        get = Signal(range(self._write_lines))
        for name, depth_width, source, target in (
            ("write_data", LINE_BITS, axi.wdata, self.write_data),
            ("write_mask", LINE_BYTES, ~axi.wstrb, self.write_mask),
        ):
            buffer: Any = memory.Memory(
                shape=depth_width, depth=self._write_lines, init=[], attrs=NEVER_BOTH
            )
            m.submodules[name] = buffer
            port, get_port = buffer.write_port(), buffer.read_port()
            m.d.comb += [
                port.addr.eq(put),
                port.data.eq(source),
                port.en.eq(store),
                get_port.addr.eq(get),
                get_port.en.eq(self.write_next),
                target.eq(get_port.data),
            ]
        for moves, pointer in ((store, put), (self.write_next, get)):
            with m.If(moves):
                m.d.sync += pointer.eq(pointer + 1)

    def _admit(
        self,
        m: Any,
        write_bursts: SyncFIFO,
        responses: SyncFIFO,
        read_addresses: SyncFIFO,
        read_bursts: SyncFIFO,
        read_fits: Any,
    ) -> None:
        """Turn bursts into requests, in runs of one direction."""
        write_burst = data.View(self._burst, write_bursts.r_data)
        read_burst = data.View(self._burst, read_addresses.r_data)
        write_refused = write_burst.response != Response.OKAY
        read_refused = read_burst.response != Response.OKAY
        may_write = Signal()
        may_read = Signal()
        direction = Signal()
        run = Signal(range(self._run_length))
        same = Signal()
        other = Signal()
        exhausted = Signal()
        take_same = Signal()
        take_other = Signal()
        take_write = Signal()
        take_read = Signal()
        m.d.comb += [
            may_write.eq(write_bursts.r_rdy & responses.w_rdy & (write_refused | self.room)),
            may_read.eq(
                read_addresses.r_rdy & read_bursts.w_rdy & (read_refused | (self.room & read_fits))
            ),
            same.eq(Mux(direction, may_write, may_read)),
            other.eq(Mux(direction, may_read, may_write)),
            exhausted.eq(run == self._run_length - 1),
            take_other.eq(other & Mux(same, exhausted, self.low)),
            take_same.eq(same & ~take_other),
            take_write.eq(Mux(direction, take_same, take_other)),
            take_read.eq(Mux(direction, take_other, take_same)),
            write_bursts.r_en.eq(take_write),
            read_addresses.r_en.eq(take_read),
            responses.w_en.eq(take_write),
            responses.w_data.eq(Cat(write_burst.id, write_burst.response)),
            read_bursts.w_en.eq(take_read),
            read_bursts.w_data.eq(Cat(read_burst.id, read_burst.length, read_burst.response)),
            self.push.eq((take_write & ~write_refused) | (take_read & ~read_refused)),
            self.request.write.eq(take_write),
            self.request.line.eq(Mux(take_write, write_burst.line, read_burst.line)),
            self.request.length.eq(Mux(take_write, write_burst.length, read_burst.length)),
        ]
        with m.If(take_other):
            m.d.sync += [direction.eq(~direction), run.eq(0)]
        with m.Elif(take_same & ~exhausted):
            m.d.sync += run.eq(run + 1)

    def _answer_writes(self, m: Any, responses: SyncFIFO) -> None:
        """Send the responses of writes, which are in order as their columns are."""
        axi = self.axi
        written = Signal(range(self._responses + 1))
        answered = Signal()
        answer_refused = axi.bresp != Response.OKAY
        response: Any = Cat(axi.bid, axi.bresp)
        m.d.comb += [
            axi.bvalid.eq(responses.r_rdy & (answer_refused | (written != 0))),
            response.eq(responses.r_data),
            answered.eq(axi.bvalid & axi.bready),
            responses.r_en.eq(answered),
        ]
        step(m, written, up=self.written, down=answered & ~answer_refused)

    def _return_reads(self, m: Any, read_addresses: SyncFIFO, read_bursts: SyncFIFO) -> Any:
        """Take read addresses and return the read data; return the flag that a line goes out."""
        axi = self.axi
        read_beat = Signal(8)
        length = Signal(8)
        returning: Any = Cat(axi.rid, length, axi.rresp)
        returned = Signal()
        line_returned = Signal()
        if self._reserve:
            # Deep, so it goes into block RAM.
            m.submodules.read_lines = deep = StreamFifo(shape=LINE_BITS, depth=self._read_lines)
            line, line_valid = deep.o.payload, deep.o.valid
            m.d.comb += [
                deep.i.valid.eq(self.read_valid),
                deep.i.payload.eq(self.read_data),
                deep.o.ready.eq(line_returned),
            ]
        else:
            m.submodules.read_lines = lines = SyncFIFO(width=LINE_BITS, depth=self._read_lines)
            line, line_valid = lines.r_data, lines.r_rdy
            m.d.comb += [
                lines.w_en.eq(self.read_valid),
                lines.w_data.eq(self.read_data),
                lines.r_en.eq(line_returned),
            ]
        m.d.comb += [
            axi.arready.eq(read_addresses.w_rdy),
            read_addresses.w_en.eq(axi.arvalid),
            read_addresses.w_data.eq(self._checked("ar")),
            returning.eq(read_bursts.r_data),
            axi.rdata.eq(line),
            axi.rlast.eq(read_beat == length),
            axi.rvalid.eq(read_bursts.r_rdy & (line_valid | (axi.rresp != Response.OKAY))),
            returned.eq(axi.rvalid & axi.rready),
            line_returned.eq(returned & (axi.rresp == Response.OKAY)),
            read_bursts.r_en.eq(returned & axi.rlast),
        ]
        with m.If(returned):
            m.d.sync += read_beat.eq(Mux(axi.rlast, 0, read_beat + 1))
        return line_returned

    def _keep_room(self, m: Any, line_returned: Any) -> Any:
        """Account for the room for read data; return whether a read may enter the queue."""
        free = Signal(range(self._read_lines + 1), init=self._read_lines)
        if not self._reserve:
            step(m, free, up=line_returned, down=self.read_issue)
            m.d.comb += self.read_room.eq(free != 0)
            return Const(1)
        # All inputs are registered, so `free` lags two cycles behind a burst that enters. Room for
        # three bursts makes up for it.
        entered, left, fits = (Signal(name=name) for name in ("entered", "left", "fits"))
        lines = Signal(range(AXI_BURST_LINES + 1))
        m.d.sync += [
            entered.eq(self.push & ~self.request.write),
            lines.eq(self.request.length + 1),
            left.eq(line_returned),
            free.eq(free + left - Mux(entered, lines, 0)),
            fits.eq(free >= 3 * AXI_BURST_LINES),
        ]
        m.d.comb += self.read_room.eq(1)
        return fits
