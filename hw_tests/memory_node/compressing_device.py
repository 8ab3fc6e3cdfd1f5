"""A device that keeps blocks, compressed, in the memory-node at the other end of a link."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.memory_node.compression.compressor import ZeroCompressor
from hw.memory_node.compression.expander import ZeroExpander
from hw.memory_node.compression.words import BlockLine
from hw.memory_node.flit import PACKET_LINES, Head, Operation, Status
from hw.memory_node.link.config import LinkConfig
from hw.memory_node.link.port import COUNTER_BITS, LinkPort
from hw.memory_node.link.wire import WireSignature

__all__ = ["CompressingDevice"]

_BLOCKS = 256
_REQUESTS, _RESPONSES = 0, 2
_COUNTS = {
    "stored": ("compressor", "lines_out"),
    "given": ("compressor", "lines_in"),
    "fetched": ("expander", "lines_in"),
    "back": ("expander", "lines_out"),
    "sent_again": ("port", "sent_again"),
    "discarded": ("port", "discarded"),
}


class CompressingDevice(wiring.Component):
    """Writes the blocks that come to ``i``, up to 256, each at the next 4 KB of its memory, and
    reads each again, as soon as it is written, out of ``o``. ``wrong`` rises with an answer that
    was not asked for, and stays; the rest are counters of the parts."""

    def __init__(self, link: LinkConfig) -> None:
        self._link = link
        wire = WireSignature(phit_bytes=link.phit_bytes)
        super().__init__(
            {
                "i": In(stream.Signature(BlockLine)),
                "o": Out(stream.Signature(BlockLine)),
                "wire_in": In(wire),
                "wire_out": Out(wire),
                "wrong": Out(1),
                **{name: Out(COUNTER_BITS) for name in _COUNTS},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.port = port = LinkPort(self._link)
        m.submodules.compressor = compressor = ZeroCompressor()
        m.submodules.expander = expander = ZeroExpander()
        sizes = data.StructLayout({"lines": 7, "stored": 7})
        m.submodules.table = table = Memory(shape=sizes, depth=_BLOCKS, init=[])
        parts = {"port": port, "compressor": compressor, "expander": expander}
        for name, (part, count) in _COUNTS.items():
            m.d.comb += getattr(self, name).eq(getattr(parts[part], count))
        wiring.connect(m, wiring.flipped(self.i), compressor.i)
        wiring.connect(m, expander.o, wiring.flipped(self.o))
        wiring.connect(m, wiring.flipped(self.wire_in), port.wire_in)
        wiring.connect(m, port.wire_out, wiring.flipped(self.wire_out))
        for channel, receive in enumerate(port.receive):
            if channel != _RESPONSES:
                m.d.comb += receive.ready.eq(1)
                with m.If(receive.valid):
                    m.d.sync += self.wrong.eq(1)
        names = ("written", "asked", "done", "came")
        written, asked, done, came = (Signal(range(_BLOCKS), name=name) for name in names)
        self._ask(m, compressor.o, port.transmit[_REQUESTS], table, (written, asked, done))
        self._answers(m, port.receive[_RESPONSES], expander.i, table, (done, came))
        return m

    def _ask(self, m: Any, stored: Any, request: Any, table: Any, counts: Any) -> None:
        """A read of the next block that is there, or else the write of the next one that comes."""
        written, asked, done = counts
        put, get = table.write_port(), table.read_port(domain="comb")
        inside = Signal()
        head: Any = data.View(Head, request.payload.payload)
        reads = ~inside & (asked != done)
        moved = request.valid & request.ready
        m.d.comb += [
            request.valid.eq(reads | stored.valid),
            request.payload.head.eq(~inside),
            get.addr.eq(asked),
            put.addr.eq(written),
            put.data.lines.eq(stored.payload.lines),
            put.data.stored.eq(stored.payload.stored),
        ]
        with m.If(inside):
            m.d.comb += [
                request.payload.payload.eq(stored.payload.line),
                request.payload.tail.eq(stored.payload.last),
                stored.ready.eq(moved),
            ]
            with m.If(moved & stored.payload.last):
                m.d.comb += put.en.eq(1)
                m.d.sync += [inside.eq(0), written.eq(written + 1)]
        with m.Elif(reads):
            m.d.comb += [
                request.payload.tail.eq(1),
                head.operation.eq(Operation.READ),
                head.lines.eq(get.data.stored),
                head.address.eq(asked << 12),
            ]
            m.d.sync += asked.eq(asked + moved)
        with m.Else():
            m.d.comb += [
                head.operation.eq(Operation.WRITE),
                head.lines.eq(stored.payload.stored),
                head.address.eq(written << 12),
            ]
            m.d.sync += inside.eq(moved)

    def _answers(self, m: Any, answer: Any, expanded: Any, table: Any, counts: Any) -> None:
        """To the expander what was read; answers of each kind come in the order of the blocks."""
        done, came = counts
        get = table.read_port(domain="comb")
        head: Any = data.View(Head, answer.payload.payload)
        first = answer.payload.head
        left = Signal(range(PACKET_LINES + 1))
        m.d.comb += [
            get.addr.eq(came),
            expanded.valid.eq(answer.valid & ~first),
            expanded.payload.line.eq(answer.payload.payload),
            expanded.payload.last.eq(answer.payload.tail),
            expanded.payload.lines.eq(get.data.lines),
            expanded.payload.stored.eq(get.data.stored),
            answer.ready.eq(first | expanded.ready),
        ]
        with m.If(answer.valid & answer.ready):
            m.d.sync += left.eq(left - 1)
            with m.If(first):
                written = head.operation == Operation.WRITE_DONE
                m.d.sync += [done.eq(done + written), left.eq(head.lines)]
                place = (head.address >> 12) == Mux(written, done, came)
                as_asked = place & (written | (head.lines == get.data.stored))
                with m.If(~as_asked | (head.status != Status.OK)):
                    m.d.sync += self.wrong.eq(1)
            with m.Elif(answer.payload.tail):
                m.d.sync += came.eq(came + 1)
                with m.If(left != 1):
                    m.d.sync += self.wrong.eq(1)
