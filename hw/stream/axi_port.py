"""Loader and writer on one AXI4 port."""

from __future__ import annotations

from typing import Any

from hw.axi.bus import BURST_INCR
from hw.line import LINE_BYTE_BITS

__all__ = ["connect_reads", "connect_writes"]


def connect_reads(m: Any, axi: Any, loader: Any) -> None:
    """Connects a :class:`~hw.stream.block_loader.BlockLoader` to the read channels of ``axi``, with
    ID 0."""
    m.d.comb += [
        axi.araddr.eq(loader.ar.payload.line << LINE_BYTE_BITS),
        axi.arlen.eq(loader.ar.payload.len),
        axi.arsize.eq(LINE_BYTE_BITS),
        axi.arburst.eq(BURST_INCR),
        axi.arvalid.eq(loader.ar.valid),
        loader.ar.ready.eq(axi.arready),
        loader.r.payload.data.eq(axi.rdata),
        loader.r.payload.resp.eq(axi.rresp),
        loader.r.payload.last.eq(axi.rlast),
        loader.r.valid.eq(axi.rvalid),
        axi.rready.eq(loader.r.ready),
    ]


def connect_writes(m: Any, axi: Any, writer: Any) -> None:
    """Connects a :class:`~hw.stream.block_writer.BlockWriter` to the write channels of ``axi``,
    with ID 0."""
    m.d.comb += [
        axi.awaddr.eq(writer.aw.payload.line << LINE_BYTE_BITS),
        axi.awlen.eq(writer.aw.payload.len),
        axi.awsize.eq(LINE_BYTE_BITS),
        axi.awburst.eq(BURST_INCR),
        axi.awvalid.eq(writer.aw.valid),
        writer.aw.ready.eq(axi.awready),
        axi.wdata.eq(writer.w.payload.data),
        axi.wstrb.eq(writer.w.payload.strb),
        axi.wlast.eq(writer.w.payload.last),
        axi.wvalid.eq(writer.w.valid),
        writer.w.ready.eq(axi.wready),
        writer.b.payload.eq(axi.bresp),
        writer.b.valid.eq(axi.bvalid),
        axi.bready.eq(writer.b.ready),
    ]
