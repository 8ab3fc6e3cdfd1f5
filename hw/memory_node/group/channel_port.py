"""Port of a memory channel that all links of a group share."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.axi.bus import BURST_INCR
from hw.logic.counter import step
from hw.logic.in_turn import round_robin
from hw.logic.line import LINE_BITS, LINE_BYTE_BITS, LINE_BYTES
from hw.logic.storage import NEVER_BOTH
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.flit import PACKET_LINES
from hw.memory_node.group.layouts import Line, Stripe
from hw.stream.fifo import StreamFifo

__all__ = ["ChannelPort"]

_BURSTS = 8
"""Bursts of a link that may wait at a channel to be written."""


class ChannelPort(wiring.Component):
    """Bursts of all links on one AXI4 port, taken in turn.

    Each link has its own AXI ID, so its data and answers come in the order of its requests. A read
    is issued when there is room for all its data; data and answers are always taken.

    Members
    -------
    reads : In(stream of :class:`~hw.memory_node.group.layouts.Stripe`), one for each link
    available : Out(links)
        A line is there for this link.
    fetch, lines : In(links), Out(:data:`~hw.memory_node.group.layouts.Line`), one for each link
        Takes a line (only while ``available``); that of the cycle before.
    writes, data : In(stream of Stripe), In(stream of lines), one for each link
        Bursts and what they write.
    written : Out(stream of a bit), one for each link
        For each burst, whether it was answered with an error.
    axi : Out(:class:`~hw.axi.bus.AXI4Signature`)
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        links = config.group_links
        stripes = stream.Signature(Stripe(config))
        super().__init__(
            {
                "reads": In(stripes).array(links),
                "available": Out(links),
                "fetch": In(links),
                "lines": Out(Line).array(links),
                "writes": In(stripes).array(links),
                "data": In(stream.Signature(LINE_BITS)).array(links),
                "written": Out(stream.Signature(1)).array(links),
                "axi": Out(config.axi),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        axi = self.axi
        for name in ("ar", "aw"):
            m.d.comb += [
                getattr(axi, f"{name}size").eq(LINE_BYTE_BITS),
                getattr(axi, f"{name}burst").eq(BURST_INCR),
            ]
        self._read(m)
        self._write(m)
        return m

    def _address(self, m: Any, name: str, link: Any, burst: Any) -> None:
        """Send ``burst`` on an address channel."""
        axi = self.axi
        m.d.sync += [
            getattr(axi, f"{name}valid").eq(1),
            getattr(axi, f"{name}id").eq(link),
            getattr(axi, f"{name}addr").eq(burst.line << LINE_BYTE_BITS),
            getattr(axi, f"{name}len").eq(burst.lines - 1),
        ]

    def _read(self, m: Any) -> None:
        axi, links = self.axi, self._config.group_links
        depth = self._config.read_buffer_lines
        asking = Signal(links)
        free = Signal()
        m.d.comb += [free.eq(~axi.arvalid | axi.arready), axi.rready.eq(1)]
        chosen = round_robin(m, asking, advance=asking.any() & free)
        with m.If(axi.arready):
            m.d.sync += axi.arvalid.eq(0)
        for link, burst in enumerate(self.reads):
            # Each link has a memory of its own. Otherwise links that walk the channels in step
            # would wait for each other at each channel.
            lines = Memory(shape=Line, depth=depth, init=[], attrs=NEVER_BOTH)
            m.submodules[f"read_lines_{link}"] = lines
            put_port, get_port = lines.write_port(), lines.read_port()
            room = Signal(range(depth + 1), init=depth, name=f"room_{link}")
            stored = Signal(range(depth + 1), name=f"stored_{link}")
            put, get = (Signal(range(depth), name=f"{name}_{link}") for name in ("put", "get"))
            arrives = Signal(name=f"arrives_{link}")
            leaves = self.fetch[link]
            m.d.comb += [
                asking[link].eq(burst.valid & (burst.payload.lines <= room)),
                burst.ready.eq(asking[link] & (chosen == link) & free),
                arrives.eq(axi.rvalid & (axi.rid == link)),
                put_port.addr.eq(put),
                put_port.en.eq(arrives),
                put_port.data.data.eq(axi.rdata),
                put_port.data.error.eq(axi.rresp[1]),
                get_port.addr.eq(get),
                get_port.en.eq(leaves),
                self.lines[link].eq(get_port.data),
                self.available[link].eq(stored != 0),
            ]
            with m.If(burst.ready):
                self._address(m, "ar", link, burst.payload)
                m.d.sync += room.eq(room - burst.payload.lines + leaves)
            with m.Elif(leaves):
                m.d.sync += room.eq(room + 1)
            step(m, stored, up=arrives, down=leaves)
            with m.If(arrives):
                m.d.sync += put.eq(put + 1)
            with m.If(leaves):
                m.d.sync += get.eq(get + 1)

    def _write(self, m: Any) -> None:
        axi, config = self.axi, self._config
        links = config.group_links
        asking = Signal(links)
        left = Signal(range(PACKET_LINES + 1))
        owner = Signal(range(links))
        # Addresses go ahead of data, which follows in the same order.
        turn_layout = data.StructLayout({"link": range(links), "lines": left.shape()})
        m.submodules.turns = turns = StreamFifo(shape=turn_layout, depth=4, early=True)
        turn: Any = turns.i.payload
        next_turn: Any = turns.o.payload
        moving, free = Signal(), Signal()
        m.d.comb += [
            moving.eq(axi.wvalid & axi.wready),
            free.eq((~axi.awvalid | axi.awready) & turns.i.ready),
            turns.i.valid.eq(asking.any() & free),
            turns.o.ready.eq((left == 0) | ((left == 1) & moving)),
            axi.wlast.eq(left == 1),
            axi.wstrb.eq((1 << LINE_BYTES) - 1),
            axi.bready.eq(1),
        ]
        chosen = round_robin(m, asking, advance=asking.any() & free)
        with m.If(axi.awready):
            m.d.sync += axi.awvalid.eq(0)
        with m.If(turns.o.valid & turns.o.ready):
            m.d.sync += [left.eq(next_turn.lines), owner.eq(next_turn.link)]
        with m.Elif(moving):
            m.d.sync += left.eq(left - 1)
        # Room for the answers of all bursts that can be in flight.
        stripes = -(-(PACKET_LINES - 1) // config.stripe_lines) + 1
        answers = config.requests * -(-stripes // config.group_channels)
        for link in range(links):
            # A link goes on to the next channel while another link has this one.
            bursts = StreamFifo(shape=Stripe(config), depth=_BURSTS, early=True)
            lines = StreamFifo(shape=LINE_BITS, depth=config.write_queue_lines, early=True)
            written = StreamFifo(shape=1, depth=answers, early=True)
            m.submodules[f"bursts_{link}"] = bursts
            m.submodules[f"lines_{link}"] = lines
            m.submodules[f"written_{link}"] = written
            wiring.connect(m, wiring.flipped(self.writes[link]), bursts.i)
            wiring.connect(m, wiring.flipped(self.data[link]), lines.i)
            wiring.connect(m, written.o, wiring.flipped(self.written[link]))
            burst: Any = bursts.o
            m.d.comb += [
                asking[link].eq(burst.valid),
                burst.ready.eq((chosen == link) & free),
                written.i.valid.eq(axi.bvalid & (axi.bid == link)),
                written.i.payload.eq(axi.bresp[1]),
            ]
            with m.If(burst.valid & burst.ready):
                self._address(m, "aw", link, burst.payload)
                m.d.comb += [turn.link.eq(link), turn.lines.eq(burst.payload.lines)]
            with m.If((owner == link) & (left != 0)):
                m.d.comb += [
                    axi.wvalid.eq(lines.o.valid),
                    axi.wdata.eq(lines.o.payload),
                    lines.o.ready.eq(axi.wready),
                ]
