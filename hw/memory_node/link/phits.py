"""Cutting of flits into phits, and assembly of phits into flits."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.memory_node.link.wire import FLIT_BYTES, WireSignature

__all__ = ["PhitAssembler", "PhitCutter"]


class PhitCutter(wiring.Component):
    """Puts flits on a wire, phit by phit, without a gap within a flit.

    A flit may follow another after as many cycles as it has phits, or later. With one phit a flit
    is on the wire in the cycle in which it comes, otherwise from the next cycle on.

    Parameters
    ----------
    phit_bytes
        Bytes that the wire carries in a cycle.

    Members
    -------
    valid : In(1)
        There is a flit.
    flit : In(576)
        The flit to send.
    wire : Out(:class:`~hw.memory_node.link.wire.WireSignature`)
        The wire that phits go to.
    """

    def __init__(self, *, phit_bytes: int) -> None:
        self._bits = 8 * phit_bytes
        super().__init__(
            {
                "valid": In(1),
                "flit": In(8 * FLIT_BYTES),
                "wire": Out(WireSignature(phit_bytes=phit_bytes)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        if self._bits == len(self.flit):
            m.d.comb += [
                self.wire.valid.eq(self.valid),
                self.wire.first.eq(self.valid),
                self.wire.data.eq(self.flit),
            ]
            return m
        rest = Signal(len(self.flit), reset_less=True)
        left = Signal(range(len(self.flit) // self._bits + 1))
        m.d.comb += [self.wire.valid.eq(left != 0), self.wire.data.eq(rest[: self._bits])]
        m.d.sync += self.wire.first.eq(self.valid)
        with m.If(self.valid):
            m.d.sync += [rest.eq(self.flit), left.eq(len(self.flit) // self._bits)]
        with m.Elif(left != 0):
            m.d.sync += [rest.eq(rest >> self._bits), left.eq(left - 1)]
        return m


class PhitAssembler(wiring.Component):
    """Makes flits of the phits on a wire; a flit is there in the cycle after its last phit.

    Phits before a first one, and those beyond a flit's last, are dropped.

    Parameters
    ----------
    phit_bytes
        Bytes that the wire carries in a cycle.

    Members
    -------
    wire : In(:class:`~hw.memory_node.link.wire.WireSignature`)
        The wire that phits come from.
    valid : Out(1)
        A flit has come, or another has begun before it was complete.
    complete : Out(1)
        With ``valid``: all of it has come.
    flit : Out(576)
        With ``complete``: the flit.
    """

    def __init__(self, *, phit_bytes: int) -> None:
        self._bits = 8 * phit_bytes
        super().__init__(
            {
                "wire": In(WireSignature(phit_bytes=phit_bytes)),
                "valid": Out(1),
                "complete": Out(1),
                "flit": Out(8 * FLIT_BYTES),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        flit = Signal(len(self.flit), reset_less=True)
        m.d.comb += self.flit.eq(flit)
        phits = len(flit) // self._bits
        if phits == 1:
            with m.If(self.wire.valid):
                m.d.sync += flit.eq(self.wire.data)
            m.d.sync += self.valid.eq(self.wire.valid & self.wire.first)
            m.d.comb += self.complete.eq(1)
            return m
        come = Signal(range(phits))
        last = come == phits - 1
        m.d.sync += [self.valid.eq(0), self.complete.eq(last)]
        with m.If(self.wire.valid):
            m.d.sync += flit.eq(Cat(flit[self._bits :], self.wire.data))
            with m.If(self.wire.first):
                m.d.sync += [come.eq(1), self.valid.eq(come != 0), self.complete.eq(0)]
            with m.Elif(last):
                m.d.sync += [come.eq(0), self.valid.eq(1)]
            with m.Elif(come != 0):
                m.d.sync += come.eq(come + 1)
        return m
