"""A device at the links of memory-nodes, for simulation: moves what it is told to move."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.in_turn import round_robin
from hw.line import LINE_BYTES
from hw.memory_node.flit import (
    CHANNELS,
    PACKET_LINES,
    Flit,
    FlitStream,
    Head,
    Operation,
    Status,
)
from hw.memory_node.link.config import LinkConfig
from hw.memory_node.link.port import LinkPort
from hw.memory_node.link.wire import WireSignature
from hw.memory_node.ring.entry import LinkEntry
from hw.memory_node.ring.packet_arbiter import PacketArbiter
from hw.verilog import Shared

__all__ = ["DeviceNode", "Transfer"]

_WORD_BITS = 32
_WORDS = 8 * LINE_BYTES // _WORD_BITS
_LINE_FACTOR = 0x9E3779B1
_WORD_STEP = 0x85EBCA6B


class Transfer(data.StructLayout):
    """Lines to be written, read or sent.

    ``links`` has a bit for each link that may be used; ``line`` is the first one, ``lines`` how
    many. Word w (of 32 bits) of line n is ``n * 0x9E3779B1 + w * 0x85EBCA6B + seed``, modulo
    2**32: that is what is written, and what is expected of what is read.
    """

    def __init__(self, links: int) -> None:
        super().__init__(
            {
                "operation": 8,
                "destination": 8,
                "links": links,
                "line": 32,
                "lines": 16,
                "seed": 16,
            }
        )


class DeviceNode(wiring.Component):
    """Stripes transfers over its links, packet by packet, and looks at what comes back.

    A request that went over a link that has died, and was not answered, is made again on another;
    its tag is a new one, and answers with an old tag are dropped. Messages for this device are
    compared with the pattern of their address and the seed in their tag.

    Parameters
    ----------
    links, link
        Links, and each of them.
    outstanding
        Requests that are not answered at once, a power of two from 2.

    Members
    -------
    node : In(8)
        Number of the device.
    transfers : In(stream of :class:`Transfer`)
        A transfer is taken when all its packets are in the table.
    wire_in, wire_out : In(WireSignature), Out(WireSignature), one for each link
    idle : Out(1)
        All requests are answered and all messages sent.
    dead : Out(links)
    done, again, refused, wrong, received : Out(32)
        Requests that were answered as they should; that were made again; that were answered with a
        status; answers and messages with other data or lines than expected; messages that came.
    """

    node: Any
    transfers: Any
    wire_in: Any
    wire_out: Any
    idle: Any
    dead: Any
    done: Any
    again: Any
    refused: Any
    wrong: Any
    received: Any

    def __init__(self, *, links: int, link: LinkConfig, outstanding: int = 8) -> None:
        self._links = links
        self._link = link
        self._outstanding = outstanding
        wire = WireSignature(phit_bytes=link.phit_bytes)
        super().__init__(
            {
                "node": In(8),
                "transfers": In(stream.Signature(Transfer(links))),
                "wire_in": In(wire).array(links),
                "wire_out": Out(wire).array(links),
                "idle": Out(1),
                "dead": Out(links),
                **{name: Out(32) for name in ("done", "again", "refused", "wrong", "received")},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        links, slots = self._links, self._outstanding
        entry_layout = data.StructLayout(
            {
                "operation": 8,
                "destination": 8,
                "links": links,
                "line": 32,
                "lines": range(PACKET_LINES + 1),
                "seed": 16,
                "link": range(links),
                "turn": 8,
            }
        )
        busy, sent = Signal(slots), Signal(slots)
        table: list[Any] = [
            Signal(entry_layout, name=f"entry_{index}", reset_less=True) for index in range(slots)
        ]

        one = LinkPort(self._link)
        ports: list[Any] = [Shared(one, name="device_link_port") for _ in range(links)]
        senders = [_Sender(entry_layout, slots) for _ in range(links)]
        sinks = [_Sink() for _ in range(links)]
        events: dict[str, list[Any]] = {"wrong": [], "received": [], "refused": [], "done": []}
        m.d.comb += [
            self.dead.eq(Cat(port.dead for port in ports)),
            self.idle.eq(~(busy.any() | self.transfers.valid)),
        ]

        def next_link(name: str, after: Any, allowed: Any) -> Signal:
            """The first link behind ``after`` that may be used and lives."""
            chosen = Signal(range(links), name=name)
            m.d.comb += chosen.eq(after)
            with m.Switch(after):
                for before in range(links):
                    with m.Case(before):
                        for distance in range(links, 0, -1):
                            link = (before + distance) % links
                            with m.If(allowed[link] & ~ports[link].dead):
                                m.d.comb += chosen.eq(link)
            return chosen

        # A packet of the transfer a cycle, as long as there is a free entry.
        transfer: Any = self.transfers.payload
        progress = Signal(16)
        left = Signal(16)
        lines = Signal(range(PACKET_LINES + 1))
        free = Signal(range(slots))
        last_link = Signal(range(links))
        chosen = next_link("chosen", last_link, transfer.links)
        room = ~busy.all()
        for index in reversed(range(slots)):
            with m.If(~busy[index]):
                m.d.comb += free.eq(index)
        m.d.comb += [
            left.eq(transfer.lines - progress),
            lines.eq(Mux(left > PACKET_LINES, PACKET_LINES, left)),
            self.transfers.ready.eq(room & (left <= PACKET_LINES)),
        ]
        with m.If(self.transfers.valid & room):
            m.d.sync += [
                progress.eq(Mux(self.transfers.ready, 0, progress + PACKET_LINES)),
                last_link.eq(chosen),
                busy.bit_select(free, 1).eq(1),
                sent.bit_select(free, 1).eq(0),
            ]
            for index, entry in enumerate(table):
                with m.If(free == index):
                    m.d.sync += [
                        entry.operation.eq(transfer.operation),
                        entry.destination.eq(transfer.destination),
                        entry.links.eq(transfer.links),
                        entry.line.eq(transfer.line + progress),
                        entry.lines.eq(lines),
                        entry.seed.eq(transfer.seed),
                        entry.link.eq(chosen),
                        entry.turn.eq(entry.turn + 1),
                    ]

        # One entry after the other: has its link died?
        looked_at = Signal(range(slots))
        seen: Any = data.View(entry_layout, Array(Cat(each) for each in table)[looked_at])
        instead = next_link("instead", seen.link, seen.links)
        lost = Signal()
        m.d.comb += lost.eq(
            busy.bit_select(looked_at, 1)
            & sent.bit_select(looked_at, 1)
            & self.dead.bit_select(seen.link, 1)
            & ~self.dead.bit_select(instead, 1)
            # Nobody knows whether a message has arrived.
            & (seen.operation != Operation.MESSAGE)
        )
        m.d.sync += looked_at.eq(looked_at + 1)
        with m.If(lost):
            m.d.sync += [sent.bit_select(looked_at, 1).eq(0), self.again.eq(self.again + 1)]
            for index, entry in enumerate(table):
                with m.If(looked_at == index):
                    m.d.sync += [entry.link.eq(instead), entry.turn.eq(entry.turn + 1)]

        for number, (port, sender, sink) in enumerate(zip(ports, senders, sinks, strict=True)):
            m.submodules[f"port_{number}"] = port
            m.submodules[f"sender_{number}"] = sender
            m.submodules[f"sink_{number}"] = sink
            m.submodules[f"entry_{number}"] = entry = LinkEntry(through=False)
            wiring.connect(m, wiring.flipped(self.wire_in[number]), port.wire_in)
            wiring.connect(m, port.wire_out, wiring.flipped(self.wire_out[number]))
            for channel in range(CHANNELS):
                wiring.connect(m, port.receive[channel], entry.receive[channel])
            wiring.connect(m, sender.o, port.transmit[0])
            m.submodules[f"merge_{number}"] = merge = PacketArbiter(2)
            wiring.connect(m, entry.requests, merge.i[0])
            wiring.connect(m, entry.responses, merge.i[1])
            wiring.connect(m, merge.o, sink.i)
            waiting = Cat(
                busy[index] & ~sent[index] & (each.link == number)
                for index, each in enumerate(table)
            )
            turn = round_robin(m, waiting, advance=sender.start)
            m.d.comb += [
                entry.node.eq(self.node),
                entry.dead.eq(port.dead),
                sender.node.eq(self.node),
                sender.start.eq(waiting.any() & ~sender.busy),
                sender.slot.eq(turn),
                sender.entry.eq(data.View(entry_layout, Array(Cat(each) for each in table)[turn])),
            ]
            with m.If(sender.start):
                m.d.sync += sent.bit_select(turn, 1).eq(1)
            with m.If(sender.message_sent):
                m.d.sync += busy.bit_select(sender.sent_slot, 1).eq(0)

            # What an answer belongs to.
            head: Any = sink.head
            slot = head.tag[: len(free)]
            asked: Any = data.View(entry_layout, Array(Cat(each) for each in table)[slot])
            write = asked.operation == Operation.WRITE
            expected = Mux(write, Operation.WRITE_DONE, Operation.READ_DATA)
            awaited = (
                busy.bit_select(slot, 1)
                & sent.bit_select(slot, 1)
                & (head.tag[8:] == asked.turn)
                & (head.operation != Operation.MESSAGE)
                # What the end of a link cut short is no answer, and no request.
                & ~(port.dead & (sink.lines < head.lines) & ~write)
                & (head.status != Status.FORMAT)
            )
            as_asked = (
                (head.operation == expected)
                & (head.lines == asked.lines)
                & (head.address == asked.line * LINE_BYTES)
                & (sink.lines == Mux(write, 0, asked.lines))
                & (write | ~sink.different)
            )
            message = head.operation == Operation.MESSAGE
            m.d.comb += [
                sink.seed.eq(Mux(message, head.tag, asked.seed)),
            ]
            with m.If(sink.ended & awaited):
                m.d.sync += busy.bit_select(slot, 1).eq(0)
            events["done"].append(sink.ended & awaited & (head.status == Status.OK) & as_asked)
            events["refused"].append(sink.ended & awaited & (head.status != Status.OK))
            events["wrong"].append(
                sink.ended
                & (
                    (awaited & (head.status == Status.OK) & ~as_asked)
                    | (message & (sink.different | (sink.lines != head.lines)))
                )
            )
            events["received"].append(sink.ended & message)
        for name, each in events.items():
            count = getattr(self, name)
            m.d.sync += count.eq(count + sum(each))
        return m


def _pattern(line: Any, seed: Any) -> Any:
    """The words of a line."""
    product = (line * _LINE_FACTOR)[:_WORD_BITS] + seed
    return Cat(
        (product + (word * _WORD_STEP) % (1 << _WORD_BITS))[:_WORD_BITS] for word in range(_WORDS)
    )


class _Sender(wiring.Component):
    """Makes the flits of a request; of a message it says when it has gone."""

    node: Any
    start: Any
    slot: Any
    entry: Any
    busy: Any
    o: Any
    message_sent: Any
    sent_slot: Any

    def __init__(self, entry: data.StructLayout, slots: int) -> None:
        self._entry = entry
        super().__init__(
            {
                "node": In(8),
                "start": In(1),
                "slot": In(range(slots)),
                "entry": In(entry),
                "busy": Out(1),
                "o": Out(FlitStream),
                "message_sent": Out(1),
                "sent_slot": Out(range(slots)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        entry: Any = Signal(self._entry, reset_less=True)
        done = Signal(range(PACKET_LINES + 1))
        first = Signal()
        flit: Any = self.o.payload
        head: Any = data.View(Head, flit.payload)
        message = entry.operation == Operation.MESSAGE
        with_data = message | (entry.operation == Operation.WRITE)
        with m.If(self.start):
            m.d.sync += [
                entry.eq(self.entry),
                self.sent_slot.eq(self.slot),
                self.busy.eq(1),
                first.eq(1),
                done.eq(0),
            ]
        m.d.comb += [self.o.valid.eq(self.busy), flit.head.eq(first)]
        with m.If(first):
            m.d.comb += [
                flit.tail.eq(~with_data),
                head.destination.eq(entry.destination),
                head.source.eq(self.node),
                head.operation.eq(entry.operation),
                head.tag.eq(Mux(message, entry.seed, (entry.turn << 8) | self.sent_slot)),
                head.lines.eq(entry.lines),
                head.address.eq(entry.line * LINE_BYTES),
            ]
        with m.Else():
            m.d.comb += [
                flit.tail.eq(done == entry.lines - 1),
                flit.payload.eq(_pattern(entry.line + done, entry.seed)),
            ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [first.eq(0), self.busy.eq(~flit.tail)]
            m.d.comb += self.message_sent.eq(flit.tail & message)
            with m.If(~first):
                m.d.sync += done.eq(done + 1)
        return m


class _Sink(wiring.Component):
    """Takes packets and compares their data; what it says of one is so while ``ended``."""

    i: Any
    head: Any
    seed: Any
    lines: Any
    different: Any
    ended: Any

    def __init__(self) -> None:
        super().__init__(
            {
                "i": In(FlitStream),
                "head": Out(Head),
                "seed": In(16),
                "lines": Out(16),
                "different": Out(1),
                "ended": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        # The head stands while the data are looked at a cycle later.
        flit: Any = Signal(Flit, reset_less=True)
        held = Signal()
        inside = Signal()
        line = Signal(32)
        m.d.comb += self.i.ready.eq(1)
        m.d.sync += [
            flit.eq(self.i.payload),
            held.eq(self.i.valid),
            self.ended.eq(held & flit.tail),
        ]
        with m.If(held):
            m.d.sync += inside.eq(~flit.tail)
            with m.If(~inside):
                m.d.sync += [
                    self.head.eq(flit.payload),
                    self.lines.eq(0),
                    self.different.eq(0),
                    line.eq(data.View(Head, flit.payload).address // LINE_BYTES),
                ]
            with m.Else():
                m.d.sync += [
                    self.lines.eq(self.lines + 1),
                    line.eq(line + 1),
                    self.different.eq(self.different | (flit.payload != _pattern(line, self.seed))),
                ]
        return m
