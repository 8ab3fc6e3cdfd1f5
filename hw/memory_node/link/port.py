"""Link port."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.logic.expose import expose
from hw.memory_node.flit import CHANNELS, FlitStream
from hw.memory_node.link.config import LinkConfig
from hw.memory_node.link.receiver import LinkReceiver
from hw.memory_node.link.transmitter import LinkTransmitter

__all__ = ["COUNTER_BITS", "LINK_COUNTERS", "LinkPort"]

COUNTER_BITS = 48

LINK_COUNTERS = ("sent", "sent_again", "taken", "discarded")


class LinkPort(wiring.Component):
    """One end of a link: flits of four virtual channels over a wire that may lose and corrupt.

    See docs/memory-node-spec.md, "Link layer". Flits stay in order within a virtual channel. A flit
    that a port has taken from ``transmit`` comes out of the other port's ``receive`` once and
    intact, or the link is dead. Flits received before a link died can still be taken; they may end
    within a packet.

    Parameters
    ----------
    config
        Configuration of the link, the same at both ends.

    Members
    -------
    transmit : In(FlitStream), one a virtual channel
        What to send; a dead link takes and drops it.
    receive : Out(FlitStream), one a virtual channel
        What the other port sent.
    wire_out : Out(:class:`~hw.memory_node.link.wire.WireSignature`)
        The wire to the other port.
    wire_in : In(:class:`~hw.memory_node.link.wire.WireSignature`)
        The wire from the other port.
    dead : Out(1)
        The link does not work any more; until reset.
    sent : Out(48)
        Filled flits sent for the first time. All counts are since reset.
    sent_again : Out(48)
        Filled flits sent for another time.
    taken : Out(48)
        Filled flits taken from the wire into a buffer.
    discarded : Out(48)
        Flits of the wire that were wrong or incomplete, or filled and not taken.

    Examples
    --------
    >>> from hw.memory_node.link.config import LinkConfig
    >>> port = LinkPort(LinkConfig(phit_bytes=36))
    >>> len(port.transmit), port.wire_out.data.shape()
    (4, unsigned(288))
    """

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        super().__init__(
            {
                "transmit": In(FlitStream).array(CHANNELS),
                "receive": Out(FlitStream).array(CHANNELS),
                "wire_out": Out(config.wire),
                "wire_in": In(config.wire),
                "dead": Out(1),
                **{name: Out(COUNTER_BITS) for name in LINK_COUNTERS},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.transmitter = transmitter = LinkTransmitter(self._config)
        m.submodules.receiver = receiver = LinkReceiver(self._config)
        wiring.connect(m, transmitter.wire, wiring.flipped(self.wire_out))
        wiring.connect(m, receiver.wire, wiring.flipped(self.wire_in))
        expose(m, self, transmitter, ("transmit",))
        expose(m, self, receiver, ("receive",))
        m.d.comb += [
            transmitter.heard.eq(receiver.heard),
            transmitter.report.eq(receiver.report),
            transmitter.due.eq(receiver.due),
            receiver.told.eq(transmitter.told),
            transmitter.enable.eq(~self.dead),
            receiver.enable.eq(~self.dead),
        ]
        silent = Signal(range(self._config.dead_cycles))
        with m.If(receiver.right):
            m.d.sync += silent.eq(0)
        with m.Else():
            m.d.sync += silent.eq(silent + 1)
            with m.If(silent == self._config.dead_cycles - 1):
                m.d.sync += self.dead.eq(1)
        with m.If(transmitter.gave_up):
            m.d.sync += self.dead.eq(1)
        counted = {
            "sent": transmitter.sent,
            "sent_again": transmitter.sent_again,
            "taken": receiver.taken,
            "discarded": receiver.discarded,
        }
        for name, event in counted.items():
            count = getattr(self, name)
            m.d.sync += count.eq(count + event)
        return m
