"""Sending half of a link port."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.logic.in_turn import next_in_turn
from hw.logic.storage import NEVER_BOTH
from hw.memory_node.flit import CHANNELS, Flit, FlitStream
from hw.memory_node.link.config import LinkConfig
from hw.memory_node.link.crc import FlitCrc
from hw.memory_node.link.phits import PhitCutter
from hw.memory_node.link.wire import CHECKED_BITS, Heard, Report, WireFlit

__all__ = ["LinkTransmitter"]

_KEPT = data.StructLayout({"flit": Flit, "channel": 2})

_UNSENT = 2
"""Flits that wait for their first sending. Flits that have not been let in yet can still be
overtaken by other virtual channels."""


class LinkTransmitter(wiring.Component):
    """Sends flits in order, and again until they are acknowledged.

    Virtual channels that have a flit, and room at the other end, take turns flit by flit. A flit is
    on the wire five cycles after it was taken (six with more than one phit) if nothing waits before
    it. No flit is sent before the other end has been heard.

    Parameters
    ----------
    config
        Configuration of the link.

    Members
    -------
    transmit : In(FlitStream), one a virtual channel
        What to send.
    enable : In(1)
        Flits are sent; without, all of ``transmit`` is taken and dropped.
    heard : In(Heard)
        What the other end has told.
    report : In(Report)
        What to tell the other end.
    due : In(1)
        There is something new in ``report``.
    told : Out(1)
        ``report`` is sent.
    gave_up : Out(1)
        ``dead_retries`` times in a row nothing came of going back.
    wire : Out(:class:`~hw.memory_node.link.wire.WireSignature`)
        Where flits go.
    sent, sent_again : Out(1)
        A filled flit is sent for the first time; for another.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        super().__init__(
            {
                "transmit": In(FlitStream).array(CHANNELS),
                "enable": In(1),
                "heard": In(Heard),
                "report": In(Report),
                "due": In(1),
                "told": Out(1),
                "gave_up": Out(1),
                "wire": Out(config.wire),
                "sent": Out(1),
                "sent_again": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        # Sequence numbers: the oldest flit that is kept, the next to send, the first that was never
        # sent, the next to let in.
        oldest, following, unsent, end = (
            Signal(8, name=name) for name in ("oldest", "following", "unsent", "end")
        )
        # Flits go through this memory even for their first sending. It is never read in the cycle
        # of its writing.
        m.submodules.kept = kept = Memory(
            shape=_KEPT, depth=config.replay_flits, init=[], attrs=NEVER_BOTH
        )
        write_port: Any = kept.write_port()
        read_port: Any = kept.read_port()

        waiting = Signal(range(_UNSENT + 1))
        room = Signal()
        kept_count = (end - oldest)[:8]
        m.d.comb += room.eq((kept_count != config.replay_flits) & (waiting != _UNSENT))
        entered = self._let_in(m, room, write_port.data)
        m.d.comb += [write_port.en.eq(entered), write_port.addr.eq(end)]

        busy = Signal(range(config.phits))
        quiet = Signal(range(config.keepalive_cycles))
        idle, fill, start = Signal(), Signal(), Signal()
        answered = Signal()
        with m.If(self.heard.valid):
            m.d.sync += answered.eq(1)
        m.d.comb += [
            idle.eq(self.enable & (busy == 0)),
            fill.eq(idle & answered & (following != end)),
            start.eq(fill | (idle & (self.due | (quiet == config.keepalive_cycles - 1)))),
            self.told.eq(start),
            self.sent.eq(fill & (following == unsent)),
            self.sent_again.eq(fill & (following != unsent)),
            read_port.en.eq(fill),
            read_port.addr.eq(following),
        ]
        with m.If(start):
            m.d.sync += [busy.eq(config.phits - 1), quiet.eq(0)]
        with m.Else():
            m.d.sync += [busy.eq(busy - (busy != 0)), quiet.eq(quiet + 1)]
        m.d.sync += [
            following.eq(following + fill),
            unsent.eq(unsent + self.sent),
            end.eq(end + entered),
            waiting.eq(waiting + entered - self.sent),
        ]
        self._hear(m, oldest, following, unsent)
        self._send(m, start, fill, following, read_port.data)
        return m

    def _let_in(self, m: Any, room: Any, entering: Any) -> Any:
        """Choose the next flit with credit, if there is ``room``; return whether there is one."""
        counts = data.ArrayLayout(8, CHANNELS)
        let_in, passed_on = Signal(counts), Signal(counts)
        requests = Signal(CHANNELS)
        last = Signal(range(CHANNELS))
        report = self.heard.report
        with m.If(self.heard.valid):
            m.d.sync += passed_on[report.credit_channel].eq(report.credits)
        chosen = next_in_turn(m, last, requests)
        entered = Signal()
        m.d.comb += [
            entered.eq(room & requests.any()),
            entering.channel.eq(chosen),
        ]
        with m.If(entered):
            m.d.sync += last.eq(chosen)
        for channel, given in enumerate(self.transmit):
            goes = entered & (chosen == channel)
            under_way = (let_in[channel] - passed_on[channel])[:8]
            m.d.comb += [
                requests[channel].eq(given.valid & (under_way != self._config.buffer_flits)),
                given.ready.eq(goes | ~self.enable),
            ]
            m.d.sync += let_in[channel].eq(let_in[channel] + goes)
            with m.If(chosen == channel):
                m.d.comb += entering.flit.eq(given.payload)
        return entered

    def _hear(self, m: Any, oldest: Any, following: Any, unsent: Any) -> None:
        """Free the flits that are acknowledged, and go back if needed."""
        config, report = self._config, self.heard.report
        unconfirmed, confirmed = Signal(8), Signal(8)
        waited = Signal(range(config.retry_cycles))
        failures = Signal(range(config.dead_retries + 1))
        usable, progress, went_back = Signal(), Signal(), Signal()
        m.d.comb += [
            unconfirmed.eq(unsent - oldest),
            confirmed.eq(report.acknowledge - oldest),
            # An acknowledgement of a flit that was never sent is invalid and is ignored.
            usable.eq(self.heard.valid & (confirmed <= unconfirmed)),
            progress.eq(usable & (confirmed != 0)),
            self.gave_up.eq(failures == config.dead_retries),
        ]
        m.d.sync += waited.eq(waited + 1)
        with m.If(usable):
            m.d.sync += oldest.eq(report.acknowledge)
            # Flits that are sent again may have arrived the first time.
            with m.If(report.retry | (confirmed > (following - oldest)[:8])):
                m.d.sync += following.eq(report.acknowledge)
            m.d.comb += went_back.eq(report.retry & (confirmed != unconfirmed))
        with m.If((unconfirmed == 0) | progress):
            m.d.sync += [waited.eq(0), failures.eq(0)]
        with m.Elif(waited == config.retry_cycles - 1):
            m.d.comb += went_back.eq(1)
            m.d.sync += following.eq(oldest)
        with m.If(went_back):
            m.d.sync += [waited.eq(0), failures.eq(Mux(progress, 0, failures) + 1)]

    def _send(self, m: Any, start: Any, fill: Any, sequence: Any, kept: Any) -> None:
        """Build a flit and put it on the wire.

        It joins the choice of this cycle with the data that the memory gives in the next.
        """
        chosen_valid, made_valid = Signal(), Signal()
        chosen, made = (Signal(WireFlit, name=name, reset_less=True) for name in ("chosen", "made"))
        m.d.sync += [
            chosen_valid.eq(start),
            chosen.filled.eq(fill),
            chosen.sequence.eq(sequence),
            chosen.report.eq(self.report),
            made_valid.eq(chosen_valid),
            made.eq(0),
            made.filled.eq(chosen.filled),
            made.sequence.eq(chosen.sequence),
            made.report.eq(chosen.report),
        ]
        with m.If(chosen.filled):
            m.d.sync += [
                made.head.eq(kept.flit.head),
                made.tail.eq(kept.flit.tail),
                made.channel.eq(kept.channel),
                made.payload.eq(kept.flit.payload),
            ]
        m.submodules.crc = crc = FlitCrc()
        m.d.comb += [crc.valid.eq(made_valid), crc.i.eq(made.as_value()[:CHECKED_BITS])]
        valid, checked = made_valid, made.as_value()[:CHECKED_BITS]
        for stage in range(FlitCrc.latency):
            next_valid = Signal(name=f"valid_{stage}")
            next_checked = Signal(CHECKED_BITS, name=f"checked_{stage}", reset_less=True)
            m.d.sync += [next_valid.eq(valid), next_checked.eq(checked)]
            valid, checked = next_valid, next_checked
        m.submodules.cutter = cutter = PhitCutter(phit_bytes=self._config.phit_bytes)
        m.d.comb += [cutter.valid.eq(valid), cutter.flit.eq(Cat(checked, crc.o))]
        wiring.connect(m, cutter.wire, wiring.flipped(self.wire))
