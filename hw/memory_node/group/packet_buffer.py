"""Buffer for lines of packets that count only when the packet is complete."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.logic.line import LINE_BITS
from hw.logic.storage import NEVER_BOTH

__all__ = ["PacketBuffer"]


class PacketBuffer(wiring.Component):
    """First in, first out; what was put in comes out after ``keep`` and never after ``drop``.

    One line a cycle goes in and one out at the same time.

    Parameters
    ----------
    depth
        Maximum number of lines inside, a power of two.

    Members
    -------
    put, line, room : In(1), In(512), Out(1)
        ``put`` only while ``room``.
    keep, drop : In(1)
        The lines since the last of these pulses are complete, or forgotten; not with ``put``.
    o : Out(stream of lines)
        Complete ones.
    """

    def __init__(self, *, depth: int) -> None:
        self._depth = depth
        super().__init__(
            {
                "put": In(1),
                "line": In(LINE_BITS),
                "room": Out(1),
                "keep": In(1),
                "drop": In(1),
                "o": Out(stream.Signature(LINE_BITS)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.storage = storage = Memory(
            shape=LINE_BITS, depth=self._depth, init=[], attrs=NEVER_BOTH
        )
        put_port, get_port = storage.write_port(), storage.read_port()
        # One bit more than the memory's addresses, to tell full from empty.
        put, kept, got = (
            Signal(range(2 * self._depth), name=name) for name in ("put_at", "kept", "got")
        )
        get = Signal()
        m.d.comb += [
            self.room.eq((put - got)[: len(got)] != self._depth),
            put_port.addr.eq(put),
            put_port.data.eq(self.line),
            put_port.en.eq(self.put),
            get.eq((kept != got) & (~self.o.valid | self.o.ready)),
            get_port.addr.eq(got),
            get_port.en.eq(get),
            self.o.payload.eq(get_port.data),
        ]
        with m.If(self.put):
            m.d.sync += put.eq(put + 1)
        with m.If(self.keep):
            m.d.sync += kept.eq(put)
        with m.If(self.drop):
            m.d.sync += put.eq(kept)
        with m.If(get):
            m.d.sync += [got.eq(got + 1), self.o.valid.eq(1)]
        with m.Elif(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        return m
