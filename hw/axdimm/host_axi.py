"""AXI4 port in place of the host link, for boards with a host AXI bus."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.host_port import HostRequest, HostResult, target_of
from hw.axi.bus import BURST_INCR, AXI4Signature, Response
from hw.logic.line import LINE_BITS, LINE_BYTE_BITS, LINE_BYTES, line_width
from hw.stream.fifo import StreamFifo

__all__ = ["HOST_ID_WIDTH", "BurstBeats", "HostAxiPort", "HostAxiSignature"]

HOST_ID_WIDTH = 16
"""Bits of an ID, as on a Zynq UltraScale+; a host with fewer leaves the upper bits 0."""

_PAGE_BITS = 12
"""Bits of an address within the 4 KB that no burst may cross (IHI 0022E, A3.4.1)."""

_FIXED, _WRAP = 0b00, 0b10
_WRAP_LENGTHS = (1, 3, 7, 15)
_FIXED_LENGTH = 15

_BURSTS = 4
_WRITE_BEATS = 16
_UNANSWERED = 64
_RUN_BEATS = 32


class HostAxiSignature(AXI4Signature):
    """AXI4 of a channel's host, 512 bits: INCR bursts of 1 to 256 beats, FIXED of 1 to 16, WRAP.

    Directions are as the host sees them. INCR bursts do not cross 4 KB. WRAP bursts have 2, 4, 8 or
    16 beats from a multiple of the size. Sizes are 1 to 64 bytes. Any other burst gets SLVERR and
    changes nothing.
    """

    def __init__(self, *, address_width: int) -> None:
        super().__init__(addr_width=address_width, data_width=LINE_BITS, id_width=HOST_ID_WIDTH)


def _burst_layout(address_width: int) -> data.StructLayout:
    return data.StructLayout(
        {"addr": address_width, "len": 8, "size": 3, "burst": 2, "id": HOST_ID_WIDTH}
    )


def _order_layout() -> data.StructLayout:
    return data.StructLayout({"id": HOST_ID_WIDTH, "last": 1})


class BurstBeats(wiring.Component):
    """Takes bursts apart: the line of each beat (IHI 0022E, A3.4.1), one a cycle.

    It takes all lengths, all kinds of bursts, and sizes up to a line. It marks the beats of an
    invalid burst as ``bad``. A burst is invalid with a larger size or a reserved kind. So is an
    INCR that crosses 4 KB, and a FIXED of more than 16 beats. A WRAP must have 2, 4, 8 or 16 beats,
    from an address that is a multiple of the size.

    Parameters
    ----------
    address_width
        Width of byte addresses.

    Members
    -------
    i : In(stream)
        ``addr``, ``len``, ``size``, ``burst`` and ``id`` as on an address channel.
    o : Out(stream)
        ``line``, ``id``, ``last`` and ``bad`` of each beat.
    """

    def __init__(self, *, address_width: int) -> None:
        self._address_width = address_width
        beat = data.StructLayout(
            {"line": line_width(address_width), "id": HOST_ID_WIDTH, "last": 1, "bad": 1}
        )
        super().__init__(
            {
                "i": In(stream.Signature(_burst_layout(address_width))),
                "o": Out(stream.Signature(beat)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        burst = self.i.payload
        address = Signal(self._address_width)
        left = Signal(8)
        # Address bits that select a byte of a beat, and address bits that the burst changes.
        within = Signal(LINE_BYTE_BITS)
        changes = Signal(_PAGE_BITS)
        bad = Signal()
        m.d.comb += [
            self.i.ready.eq(~self.o.valid | (self.o.ready & self.o.payload.last)),
            self.o.payload.line.eq(address[LINE_BYTE_BITS:]),
            self.o.payload.last.eq(left == 0),
            self.o.payload.bad.eq(bad),
        ]

        low = address[:_PAGE_BITS]
        following = Signal(_PAGE_BITS)
        m.d.comb += following.eq((low | within) + 1)

        size_mask = Signal(LINE_BYTE_BITS)
        length_mask = Signal(_PAGE_BITS)
        end = Signal(_PAGE_BITS + 3)
        m.d.comb += [
            size_mask.eq((1 << burst.size) - 1),
            length_mask.eq((burst.len << burst.size) | size_mask),
            end.eq((burst.addr[:_PAGE_BITS] | size_mask) + (burst.len << burst.size)),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                self.o.valid.eq(1),
                address.eq(burst.addr),
                left.eq(burst.len),
                within.eq(size_mask),
                self.o.payload.id.eq(burst.id),
            ]
            with m.Switch(burst.burst):
                with m.Case(BURST_INCR):
                    m.d.sync += [changes.eq(~0), bad.eq(end[_PAGE_BITS:].any())]
                with m.Case(_FIXED):
                    m.d.sync += [changes.eq(0), bad.eq(burst.len > _FIXED_LENGTH)]
                with m.Case(_WRAP):
                    m.d.sync += [
                        changes.eq(length_mask),
                        bad.eq(~burst.len.matches(*_WRAP_LENGTHS) | (burst.addr & size_mask).any()),
                    ]
                with m.Default():
                    m.d.sync += bad.eq(1)
            with m.If(burst.size > LINE_BYTE_BITS):
                m.d.sync += bad.eq(1)
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += left.eq(left - 1)
            m.d.sync += low.eq((low & ~changes) | (following & changes))
            with m.If(self.o.payload.last):
                m.d.sync += self.o.valid.eq(0)
        return m


class HostAxiPort(wiring.Component):
    """A host on AXI4 in the place of a :class:`~hw.axdimm.host_port.HostPort`.

    Each beat of any size becomes a request for its line, with its strobes. Requests of one
    direction keep the order of their addresses. Reads and writes alternate in runs while both are
    waiting. A direction without data, or with answers that nobody takes, does not block the other.
    Answers come in the order of the addresses, too.

    Refused or failed beats get SLVERR, and so does a write with such a beat; its other beats are
    written. No output depends combinationally on an input of ``s_axi``. WLAST is ignored.

    Parameters
    ----------
    address_width
        Byte address width of the channel.

    Members
    -------
    s_axi : In(:class:`HostAxiSignature`)
        The host.
    o : Out(stream of :class:`~hw.axdimm.host_port.HostRequest`)
        Requests.
    i_valid, i : In(1), In(:class:`~hw.axdimm.host_port.HostResult`)
        Results of reads, in order; always taken. Their tag means nothing.
    written, write_ok : In(1), In(1)
        One cycle for each write that is done, or refused, in order; and which of them it was.
    late, overflow, tags_upset, request_upset : Out(1)
        Never; the host waits, and there are no tags.
    empty : Out(1)
        No request is queued or on offer.
    """

    side = "s_axi"
    """Name of the member that connects to the host."""

    in_order = True
    """Order of results: those of reads and writes come in the order of the requests."""

    read_latency = 0
    """Fixed latency of reads in fabric cycles; 0 as there is none."""

    def __init__(self, *, address_width: int) -> None:
        self._address_width = address_width
        super().__init__(
            {
                "s_axi": In(HostAxiSignature(address_width=address_width)),
                "o": Out(stream.Signature(HostRequest(line_width=line_width(address_width)))),
                "i_valid": In(1),
                "i": In(HostResult()),
                "written": In(1),
                "write_ok": In(1),
                "late": Out(1),
                "overflow": Out(1),
                "tags_upset": Out(1),
                "request_upset": Out(1),
                "empty": Out(1),
            }
        )

    def _beats(self, m: Any, channel: str) -> tuple[Any, Any]:
        """Return the beats of the bursts on an address channel, and a flag that there are none."""
        axi = self.s_axi
        m.submodules[f"{channel}_bursts"] = queue = StreamFifo(
            shape=_burst_layout(self._address_width), depth=_BURSTS
        )
        m.submodules[f"{channel}_beats"] = beats = BurstBeats(address_width=self._address_width)
        m.d.comb += [
            queue.i.valid.eq(getattr(axi, f"{channel}valid")),
            getattr(axi, f"{channel}ready").eq(queue.i.ready),
            *(
                queue.i.payload[name].eq(getattr(axi, f"{channel}{name}"))
                for name, _ in _burst_layout(self._address_width)
            ),
        ]
        wiring.connect(m, queue.o, beats.i)
        return beats.o, (queue.level == 0) & ~beats.o.valid

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        axi = self.s_axi
        reads, no_reads = self._beats(m, "ar")
        writes, no_writes = self._beats(m, "aw")
        m.submodules.write_data = write_data = StreamFifo(
            shape=data.StructLayout({"data": LINE_BITS, "strobes": LINE_BYTES}),
            depth=_WRITE_BEATS,
        )
        # Beats whose result is not yet taken: a place here guarantees a place for the result.
        m.submodules.read_order = read_order = StreamFifo(shape=_order_layout(), depth=_UNANSWERED)
        m.submodules.write_order = write_order = StreamFifo(
            shape=_order_layout(), depth=_UNANSWERED
        )
        m.submodules.read_results = read_results = StreamFifo(
            shape=data.StructLayout({"ok": 1, "data": LINE_BITS}), depth=_UNANSWERED
        )
        m.submodules.write_results = write_results = StreamFifo(shape=1, depth=_UNANSWERED)
        m.d.comb += [
            write_data.i.valid.eq(axi.wvalid),
            write_data.i.payload.data.eq(axi.wdata),
            write_data.i.payload.strobes.eq(axi.wstrb),
            axi.wready.eq(write_data.i.ready),
            self.empty.eq(no_reads & no_writes & (write_data.level == 0)),
        ]

        # Choice of the direction. A request once offered stays.
        can_read = reads.valid & read_order.i.ready
        can_write = writes.valid & write_data.o.valid & write_order.i.ready
        last_write = Signal()
        write = Signal()
        waits = Signal()
        run = Signal(range(_RUN_BEATS))
        exhausted = run == _RUN_BEATS - 1
        same = Mux(last_write, can_write, can_read)
        other = Mux(last_write, can_read, can_write)
        request = self.o.payload
        taken = Signal()
        m.d.comb += [
            write.eq(last_write ^ (other & (~same | exhausted) & ~waits)),
            self.o.valid.eq(Mux(write, can_write, can_read)),
            taken.eq(self.o.valid & self.o.ready),
            request.write.eq(write),
            request.line.eq(Mux(write, writes.payload.line, reads.payload.line)),
            request.target.eq(target_of(request.line)),
            request.bad.eq(Mux(write, writes.payload.bad, reads.payload.bad)),
            request.data.eq(write_data.o.payload.data),
            request.strobes.eq(write_data.o.payload.strobes),
            reads.ready.eq(taken & ~write),
            writes.ready.eq(taken & write),
            write_data.o.ready.eq(taken & write),
        ]
        m.d.sync += waits.eq(self.o.valid & ~self.o.ready)
        with m.If(self.o.valid):
            m.d.sync += last_write.eq(write)
        with m.If(taken):
            m.d.sync += run.eq(Mux(write != last_write, 0, Mux(exhausted, run, run + 1)))

        for order, beats, mine in ((read_order, reads, ~write), (write_order, writes, write)):
            m.d.comb += [
                order.i.valid.eq(taken & mine),
                order.i.payload.id.eq(beats.payload.id),
                order.i.payload.last.eq(beats.payload.last),
            ]
        m.d.comb += [
            read_results.i.valid.eq(self.i_valid),
            read_results.i.payload.ok.eq(self.i.ok),
            read_results.i.payload.data.eq(self.i.data),
            write_results.i.valid.eq(self.written),
            write_results.i.payload.eq(self.write_ok),
        ]

        def response(ok: Any) -> Any:
            return Mux(ok, Response.OKAY, Response.SLVERR)

        read_given = axi.rvalid & axi.rready
        m.d.comb += [
            axi.rvalid.eq(read_order.o.valid & read_results.o.valid),
            axi.rid.eq(read_order.o.payload.id),
            axi.rlast.eq(read_order.o.payload.last),
            axi.rdata.eq(read_results.o.payload.data),
            axi.rresp.eq(response(read_results.o.payload.ok)),
            read_order.o.ready.eq(read_given),
            read_results.o.ready.eq(read_given),
        ]

        failed = Signal()
        ok = write_results.o.payload & ~failed
        last = write_order.o.payload.last
        step = Signal()
        m.d.comb += [
            step.eq(write_order.o.valid & write_results.o.valid & ~(last & axi.bvalid)),
            write_order.o.ready.eq(step),
            write_results.o.ready.eq(step),
        ]
        with m.If(axi.bready):
            m.d.sync += axi.bvalid.eq(0)
        with m.If(step):
            m.d.sync += failed.eq(~ok & ~last)
            with m.If(last):
                m.d.sync += Cat(axi.bid, axi.bresp, axi.bvalid).eq(
                    Cat(write_order.o.payload.id, response(ok)[:2], 1)
                )
        return m
