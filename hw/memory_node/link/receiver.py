"""Receiving half of a link port."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.in_turn import next_in_turn
from hw.memory_node.flit import CHANNELS, Flit, FlitStream
from hw.memory_node.link.config import LinkConfig
from hw.memory_node.link.crc import FlitCrc
from hw.memory_node.link.phits import PhitAssembler
from hw.memory_node.link.wire import CHECKED_BITS, Heard, Report, WireFlit
from hw.stream.fifo import StreamFifo

__all__ = ["LinkReceiver"]


class LinkReceiver(wiring.Component):
    """Takes flits from a wire if they are right and have their turn, and asks again for others.

    A flit is decided on four cycles after its last phit is on the wire. It is at the output two
    cycles later if nothing waits before it.

    Parameters
    ----------
    config
        Configuration of the link.

    Members
    -------
    wire : In(:class:`~hw.memory_node.link.wire.WireSignature`)
        Where flits come from.
    receive : Out(FlitStream), one a virtual channel
        What was taken.
    enable : In(1)
        Flits are taken; without, nothing that comes has an effect.
    heard : Out(Heard)
        What the flits told of the other direction.
    report : Out(Report)
        What the next flit of the other direction is to tell.
    due : Out(1)
        There is something new in ``report``.
    told : In(1)
        ``report`` is sent.
    right : Out(1)
        A flit with a right CRC has come.
    taken, discarded : Out(1)
        One filled flit was taken; a flit was not used that was wrong, incomplete or filled.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        super().__init__(
            {
                "wire": In(config.wire),
                "receive": Out(FlitStream).array(CHANNELS),
                "enable": In(1),
                "heard": Out(Heard),
                "report": Out(Report),
                "due": Out(1),
                "told": In(1),
                "right": Out(1),
                "taken": Out(1),
                "discarded": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        come, right, flit = self._check(m)
        good = come & right

        # For the order of sequence numbers see "Retry" of docs/memory-node-spec.md. Half of them
        # are ahead, half behind. The furthest number of an empty flit counts as behind; the sender
        # then goes back by itself.
        expected = Signal(8)
        distance = Signal(8)
        in_turn, ahead, take, discard = (Signal() for _ in range(4))
        full = Signal(CHANNELS)
        m.d.comb += [
            distance.eq(flit.sequence - expected),
            in_turn.eq(distance == 0),
            ahead.eq(~distance[-1] & ~in_turn),
            take.eq(good & flit.filled & in_turn & ~full.bit_select(flit.channel, 1)),
            discard.eq(come & (~right | flit.filled & ~take)),
        ]
        m.d.sync += [
            expected.eq(expected + take),
            self.right.eq(good),
            self.taken.eq(take),
            self.discarded.eq(discard),
            self.heard.valid.eq(good),
            self.heard.report.eq(flit.report),
        ]

        passed = Signal(CHANNELS)
        for channel in range(CHANNELS):
            fifo = StreamFifo(shape=Flit, depth=self._config.buffer_flits)
            m.submodules[f"buffer_{channel}"] = fifo
            m.d.comb += [
                fifo.i.payload.head.eq(flit.head),
                fifo.i.payload.tail.eq(flit.tail),
                fifo.i.payload.payload.eq(flit.payload),
                fifo.i.valid.eq(take & (flit.channel == channel)),
                passed[channel].eq(fifo.o.valid & fifo.o.ready),
            ]
            wiring.connect(m, fifo.o, wiring.flipped(self.receive[channel]))
            # A cycle late, which is safe: the sender cannot know yet what is taken out meanwhile.
            most = self._config.buffer_flits
            m.d.sync += full[channel].eq(
                (fifo.level == most) | ((fifo.level == most - 1) & fifo.i.valid)
            )

        again = self._asks(m, wrong=come & (~right | ahead), come=good & in_turn)
        acknowledge_due = Signal()
        with m.If(good & flit.filled & ~ahead):  # behind, too: its acknowledgement may be lost
            m.d.sync += acknowledge_due.eq(1)
        with m.Elif(self.told):
            m.d.sync += acknowledge_due.eq(0)
        credit_channel, credits, credit_due = self._credits(m, passed)
        m.d.comb += [
            self.report.acknowledge.eq(expected),
            self.report.retry.eq(again),
            self.report.credits.eq(credits),
            self.report.credit_channel.eq(credit_channel),
            self.due.eq(acknowledge_due | again | credit_due),
        ]
        return m

    def _check(self, m: Any) -> tuple[Any, Any, Any]:
        """Return whether a flit has come, whether it is complete with a right CRC, and the flit."""
        m.submodules.assembler = assembler = PhitAssembler(phit_bytes=self._config.phit_bytes)
        m.submodules.crc = crc = FlitCrc()
        wiring.connect(m, assembler.wire, wiring.flipped(self.wire))
        m.d.comb += [crc.valid.eq(assembler.valid), crc.i.eq(assembler.flit[:CHECKED_BITS])]
        valid, complete, flit = assembler.valid, assembler.complete, assembler.flit
        for stage in range(FlitCrc.latency):
            next_valid = Signal(name=f"valid_{stage}")
            next_complete = Signal(name=f"complete_{stage}")
            next_flit = Signal(WireFlit, name=f"flit_{stage}", reset_less=True)
            m.d.sync += [
                next_valid.eq(valid),
                next_complete.eq(complete),
                next_flit.eq(flit),
            ]
            valid, complete, flit = next_valid, next_complete, next_flit
        checked_valid, checked_right = Signal(), Signal()
        checked = Signal(WireFlit, reset_less=True)
        m.d.sync += [
            checked_valid.eq(valid & self.enable),
            checked_right.eq(complete & (crc.o == flit.crc)),
            checked.eq(flit),
        ]
        return checked_valid, checked_right, checked

    def _asks(self, m: Any, *, wrong: Any, come: Any) -> Any:
        """Return whether the next flit must request all flits from the expected one on."""
        again, requested = Signal(), Signal(name="asked")
        waited = Signal(range(self._config.retry_cycles))
        with m.If(come):
            m.d.sync += [requested.eq(0), again.eq(0)]
        with m.Elif(~requested & wrong):
            m.d.sync += [requested.eq(1), again.eq(1)]
        with m.Elif(again & self.told):
            m.d.sync += [again.eq(0), waited.eq(0)]
        with m.Elif(requested & ~again):
            m.d.sync += waited.eq(waited + 1)
            with m.If(waited == self._config.retry_cycles - 2):
                m.d.sync += again.eq(1)
        return again

    def _credits(self, m: Any, passed: Any) -> tuple[Any, Any, Any]:
        """Return the virtual channel to report, its count of flits passed on, and if there is news.

        Every 64th flit reports the next channel with or without news, since the flit that reported
        it before may be lost.
        """
        counts = data.ArrayLayout(8, CHANNELS)
        passed_on, due = Signal(counts), Signal(CHANNELS)
        last = Signal(range(CHANNELS))
        flits = Signal(data.StructLayout({"between": 6, "channel": 2}))
        chosen = Signal(range(CHANNELS))
        m.d.comb += chosen.eq(Mux(due.any(), next_in_turn(m, last, due), last + 1))
        with m.If(flits.between.all()):
            m.d.comb += chosen.eq(flits.channel)
        with m.If(self.told):
            m.d.sync += [
                flits.as_value().eq(flits.as_value() + 1),
                last.eq(chosen),
                due.bit_select(chosen, 1).eq(0),
            ]
        for channel in range(CHANNELS):
            with m.If(passed[channel]):
                m.d.sync += [passed_on[channel].eq(passed_on[channel] + 1), due[channel].eq(1)]
        return chosen, passed_on[chosen], due.any()
