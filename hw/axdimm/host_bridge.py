"""Bridges of host requests to the DRAM (AXI4) and to the kernel's registers (AXI4-Lite)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.host_port import TAG_BITS, HostRequest, HostResult
from hw.axi.bus import BURST_INCR, AXI4LiteSignature, AXI4Signature, Response
from hw.csr.bank import CSR_DATA_WIDTH
from hw.kernel.registers import WINDOW_ADDR_WIDTH
from hw.logic.checks import check_int
from hw.logic.counter import under_way
from hw.logic.line import LINE_BITS, LINE_BYTE_BITS, LINE_BYTES, line_width
from hw.stream.fifo import StreamFifo

__all__ = ["DramBridge", "RegisterBridge"]


class DramBridge(wiring.Component):
    """Turns each host request into an AXI4 transaction of one beat.

    AXI does not order reads and writes against each other, but a host on the link expects order.
    With ``ordered`` a read therefore waits until all writes are answered, and a write until all
    reads are.

    Parameters
    ----------
    address_width
        Byte address width of the channel.
    id_width
        Width of AXI IDs; the bridge uses ID 0.
    outstanding
        Maximum number of reads in flight, and of writes in flight.
    ordered
        Make reads and writes wait for each other.

    Members
    -------
    i : In(stream of :class:`~hw.axdimm.host_port.HostRequest`)
        Requests.
    axi : Out(:class:`~hw.axi.bus.AXI4Signature`)
        The memory.
    o : Out(stream of :class:`~hw.axdimm.host_port.HostResult`)
        Results of reads, in order.
    written, write_ok : Out(1), Out(1)
        One cycle for each write that is answered, in order; whether it was not with an error.
    idle : Out(1)
        Nothing is in flight.
    upset : Out(1)
        One cycle after the tag of a read in flight had lost a bit.
    """

    def __init__(
        self, *, address_width: int, id_width: int, outstanding: int = 64, ordered: bool = True
    ) -> None:
        check_int("outstanding", outstanding, 2, 256, power_of_two=True)
        self._outstanding = outstanding
        self._ordered = ordered
        super().__init__(
            {
                "i": In(stream.Signature(HostRequest(line_width=line_width(address_width)))),
                "axi": Out(
                    AXI4Signature(addr_width=address_width, data_width=LINE_BITS, id_width=id_width)
                ),
                "o": Out(stream.Signature(HostResult())),
                "written": Out(1),
                "write_ok": Out(1),
                "idle": Out(1),
                "upset": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        axi = self.axi
        m.submodules.tags = tags = StreamFifo(
            shape=data.StructLayout({"tag": TAG_BITS, "odd": 1}), depth=self._outstanding
        )
        # A subordinate may take data only a cycle after its address; the next request need not
        # wait for that.
        m.submodules.write_data = write_data = StreamFifo(
            shape=data.StructLayout({"data": LINE_BITS, "strobes": LINE_BYTES}), depth=4
        )

        write = Signal()
        read = Signal()
        # `outstanding` is a power of two: the count's highest bit is set only when it is reached.
        writes, no_writes = under_way(m, "writes", self._outstanding, begun=write, ended=axi.bvalid)
        reads, no_reads = under_way(
            m, "reads", self._outstanding, begun=read, ended=axi.rvalid & axi.rready
        )
        m.d.comb += [
            self.idle.eq(no_writes & no_reads),
            axi.bready.eq(1),
            axi.awsize.eq(LINE_BYTE_BITS),
            axi.awburst.eq(BURST_INCR),
            axi.arsize.eq(LINE_BYTE_BITS),
            axi.arburst.eq(BURST_INCR),
            axi.wlast.eq(1),
        ]

        request = self.i.payload
        can_write = Signal()
        can_read = Signal()
        m.d.comb += [
            can_write.eq(
                (~axi.awvalid | axi.awready)
                & write_data.i.ready
                & (no_reads if self._ordered else 1)
                & ~writes[-1]
            ),
            can_read.eq(
                (~axi.arvalid | axi.arready) & (no_writes if self._ordered else 1) & ~reads[-1]
            ),
            write.eq(self.i.valid & request.write & can_write),
            read.eq(self.i.valid & ~request.write & can_read),
            self.i.ready.eq(Mux(request.write, can_write, can_read)),
            tags.i.valid.eq(read),
            tags.i.payload.tag.eq(request.tag),
            tags.i.payload.odd.eq(request.tag.xor()),
            write_data.i.valid.eq(write),
            write_data.i.payload.data.eq(request.data),
            write_data.i.payload.strobes.eq(request.strobes),
            axi.wvalid.eq(write_data.o.valid),
            axi.wdata.eq(write_data.o.payload.data),
            axi.wstrb.eq(write_data.o.payload.strobes),
            write_data.o.ready.eq(axi.wready),
        ]
        with m.If(axi.awready):
            m.d.sync += axi.awvalid.eq(0)
        with m.If(axi.arready):
            m.d.sync += axi.arvalid.eq(0)
        with m.If(write):
            m.d.sync += [axi.awvalid.eq(1), axi.awaddr.eq(request.line << LINE_BYTE_BITS)]
        with m.If(read):
            m.d.sync += [axi.arvalid.eq(1), axi.araddr.eq(request.line << LINE_BYTE_BITS)]

        m.d.comb += [
            self.o.valid.eq(axi.rvalid),
            self.o.payload.tag.eq(tags.o.payload.tag),
            self.o.payload.ok.eq(axi.rresp == Response.OKAY),
            self.o.payload.data.eq(axi.rdata),
            axi.rready.eq(self.o.ready),
            tags.o.ready.eq(axi.rvalid & self.o.ready),
            self.written.eq(axi.bvalid),
            self.write_ok.eq(axi.bresp == Response.OKAY),
        ]
        m.d.sync += self.upset.eq(tags.o.valid & tags.o.payload.as_value().xor())
        return m


class RegisterBridge(wiring.Component):
    """Turns each host request into an AXI4-Lite transaction on a 4 KB window of 64-bit registers.

    One transaction at a time.

    Members
    -------
    i : In(stream of :class:`~hw.axdimm.host_port.HostRequest`)
        Requests; the line's place in its 4 KB is the register's address. The first eight bytes and
        strobes are the register's.
    axi : Out(:class:`~hw.axi.bus.AXI4LiteSignature`)
        The registers.
    o : Out(stream of :class:`~hw.axdimm.host_port.HostResult`)
        Results of reads.
    idle : Out(1)
        No transaction is in progress.
    written : Out(1)
        One cycle for each write that is answered, with an error if ``error``.
    error : Out(1)
        One cycle for each request that was answered with an error.
    """

    def __init__(self, *, address_width: int) -> None:
        super().__init__(
            {
                "i": In(stream.Signature(HostRequest(line_width=line_width(address_width)))),
                "axi": Out(
                    AXI4LiteSignature(addr_width=WINDOW_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
                ),
                "o": Out(stream.Signature(HostResult())),
                "idle": Out(1),
                "written": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        axi = self.axi
        request = self.i.payload
        tag = Signal(TAG_BITS)
        # Data comes only for a read, so no flag for a read in progress is needed.
        m.d.comb += [
            self.o.valid.eq(axi.rvalid),
            self.o.payload.tag.eq(tag),
            self.o.payload.ok.eq(axi.rresp == Response.OKAY),
            self.o.payload.data.eq(axi.rdata),
            axi.rready.eq(self.o.ready),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.i.ready.eq(1), self.idle.eq(1)]
                m.d.sync += [
                    tag.eq(request.tag),
                    axi.awaddr.eq(request.line << LINE_BYTE_BITS),
                    axi.araddr.eq(request.line << LINE_BYTE_BITS),
                    axi.wdata.eq(request.data[:CSR_DATA_WIDTH]),
                    axi.wstrb.eq(request.strobes[: CSR_DATA_WIDTH // 8]),
                ]
                with m.If(self.i.valid & request.write):
                    m.d.sync += [axi.awvalid.eq(1), axi.wvalid.eq(1)]
                    m.next = "WRITE"
                with m.Elif(self.i.valid):
                    m.d.sync += axi.arvalid.eq(1)
                    m.next = "READ"
            with m.State("WRITE"):
                with m.If(axi.awready):
                    m.d.sync += axi.awvalid.eq(0)
                with m.If(axi.wready):
                    m.d.sync += axi.wvalid.eq(0)
                m.d.comb += axi.bready.eq(1)
                with m.If(axi.bvalid):
                    m.d.comb += [self.written.eq(1), self.error.eq(axi.bresp != Response.OKAY)]
                    m.next = "IDLE"
            with m.State("READ"):
                with m.If(axi.arready):
                    m.d.sync += axi.arvalid.eq(0)
                with m.If(axi.rvalid & axi.rready):
                    m.d.comb += self.error.eq(axi.rresp != Response.OKAY)
                    m.next = "IDLE"
        return m
