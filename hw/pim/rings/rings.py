"""Rings: fetch descriptors from the memory and write completions of their works to it."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.logic.in_turn import next_in_turn
from hw.pim.config import PimConfig
from hw.pim.front.words import WordWriteSignature
from hw.pim.memory.memory_port import (
    HOST_TAG_BITS,
    host_response_layout,
    memory_request_layout,
)
from hw.pim.rings.layouts import (
    COUNT_BITS,
    DESCRIPTOR_BEATS,
    completion_layout,
    ring_control_layout,
    ring_status_layout,
)
from hw.pim.work.status import CAUSE_BITS, ID_BITS, WorkEventsSignature

__all__ = ["Rings"]

_SLOT_BEAT_BITS = 3
_COMPLETION = completion_layout().size


class Rings(wiring.Component):
    """Fetcher of descriptors from all rings, and writer of completions (docs/pim-spec.md, "Rings").

    It handles one descriptor at a time, from the rings in turn: the descriptor is read and checked,
    and waits until the scheduler takes it. A completion is written when it was refused, or when its
    work has completed. ``notice`` follows as soon as a read on the same path would see it.

    Parameters
    ----------
    config
        The pool.

    Members
    -------
    settings : In(array of :func:`~hw.pim.rings.layouts.ring_control_layout`)
    status : Out(array of :func:`~hw.pim.rings.layouts.ring_status_layout`)
        Settings from each ring's registers, and status for them.
    notice : Out(config.rings)
        Pulse for each ring: one more completion is on its way into the memory.
    resting : Out(config.rings)
        A bit for each ring: none of its descriptors is being fetched or checked, and all that were
        taken have completions.
    request : Out(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    response : In(stream of :func:`~hw.pim.memory.memory_port.host_response_layout`)
        Requests to the memory, and its responses, in any order; always taken.
    descriptor_write : Out(:class:`~hw.pim.front.words.WordWriteSignature`)
    start : Out(1)
        Words for the front, which is not busy while it is written, and its start.
    events : In(:class:`~hw.pim.work.status.WorkEventsSignature`)
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        # At least two, so that a ring's number has a bit.
        self._number = range(max(config.rings, 2))
        super().__init__(
            {
                "settings": In(data.ArrayLayout(ring_control_layout(), config.rings)),
                "status": Out(data.ArrayLayout(ring_status_layout(), config.rings)),
                "notice": Out(config.rings),
                "resting": Out(config.rings),
                "request": Out(
                    stream.Signature(memory_request_layout(config, tag_bits=HOST_TAG_BITS))
                ),
                "response": In(stream.Signature(host_response_layout(tag_bits=HOST_TAG_BITS))),
                "descriptor_write": Out(WordWriteSignature()),
                "start": Out(1),
                "events": In(WorkEventsSignature()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        works, events = self._config.works, self.events
        origin = data.StructLayout({"ring": self._number, "descriptor": COUNT_BITS})
        ended = data.StructLayout({"origin": origin, "id": ID_BITS, "cause": CAUSE_BITS})
        # A descriptor is fetched only while fewer than `works` entries are in here. So there is
        # room for all works of the scheduler and for this one.
        m.submodules.done = done = SyncFIFO(width=ended.size, depth=2 * works)
        fetched = Signal(origin)
        status = self.status[fetched.ring]
        m.d.comb += fetched.descriptor.eq(status.tail)
        m.submodules.origins = origins = memory.Memory(shape=origin, depth=works, init=[])
        origin_write, origin_read = origins.write_port(), origins.read_port(domain="comb")
        end, first = Signal(ended), data.View(ended, done.r_data)
        refused = events.taken & (events.cause != 0)
        m.d.comb += [
            origin_write.en.eq(events.taken & ~refused),
            origin_write.addr.eq(events.id),
            origin_write.data.eq(fetched),
            origin_read.addr.eq(events.completed_id),
            end.origin.eq(Mux(refused, fetched, origin_read.data)),
            end.id.eq(Mux(refused, 0, events.completed_id)),
            end.cause.eq(Mux(refused, events.cause, 0)),
            done.w_en.eq(refused | events.completed),
            done.w_data.eq(end),
            self.response.ready.eq(1),
        ]

        request, payload = self.request, self.request.payload
        room = ~request.valid | request.ready
        answered = self.response.valid & ~self.response.payload.write
        beat, got = Signal(range(DESCRIPTOR_BEATS)), Signal(range(DESCRIPTOR_BEATS + 1))
        m.d.comb += [
            self.descriptor_write.enable.eq(answered),
            self.descriptor_write.index.eq(self.response.payload.tag),
            self.descriptor_write.data.eq(self.response.payload.data),
        ]
        writes, reads = Signal(), Signal()
        with m.If(request.ready):
            m.d.sync += request.valid.eq(0)
        with m.If(room & (writes | reads)):
            m.d.sync += [request.valid.eq(1), payload.write.eq(writes)]
        with m.If(room & writes):
            self._write(m, first)
        with m.Elif(room & reads):
            m.d.sync += [
                payload.address.eq(self._beat(m, fetched.ring, status.tail, beat, "fetch")),
                payload.tag.eq(beat),
            ]

        waiting = Cat(
            control.head != ring_status.tail
            for control, ring_status in zip(self.settings, self.status, strict=True)
        )
        following = next_in_turn(m, fetched.ring, waiting)
        with m.FSM(name="fetching") as fetching:
            m.d.comb += self.resting.eq(
                Cat(
                    (fetching.ongoing("IDLE") | (fetched.ring != number))
                    & (ring_status.tail == ring_status.completions)
                    for number, ring_status in enumerate(self.status)
                )
            )
            with m.State("IDLE"):
                m.d.sync += [beat.eq(0), got.eq(0)]
                with m.If(waiting.any() & (done.level < works)):
                    m.d.sync += fetched.ring.eq(following)
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += reads.eq(~writes)
                with m.If(reads & room):
                    m.d.sync += beat.eq(beat + 1)
                    with m.If(beat == DESCRIPTOR_BEATS - 1):
                        m.next = "FILL"
            with m.State("FILL"), m.If(got == DESCRIPTOR_BEATS):
                m.d.comb += self.start.eq(1)
                m.next = "CHECK"
            with m.State("CHECK"), m.If(events.taken):
                m.d.sync += [status.tail.eq(status.tail + 1), status.cause.eq(events.cause)]
                with m.If(~refused):
                    m.d.sync += status.id.eq(events.id)
                m.next = "IDLE"
        with m.If(answered):
            m.d.sync += got.eq(got + 1)

        # A completion waits until the previous one has left the request register. Then the previous
        # one is announced to its ring.
        announced = Signal(self._number, name="told")
        waits = request.valid & payload.write
        m.d.comb += [writes.eq(done.r_rdy & ~waits), done.r_en.eq(room & writes)]
        with m.If(done.r_en):
            m.d.sync += announced.eq(first.origin.ring)
        with m.If(waits & request.ready):
            to = self.status[announced]
            m.d.comb += self.notice.eq(1 << announced)
            m.d.sync += [
                to.completions.eq(to.completions + 1),
                to.completed_id.eq(data.View(completion_layout(), payload.data[:_COMPLETION]).id),
            ]
        return m

    def _write(self, m: Any, ended: Any) -> None:
        """Request the write of a work's completion."""
        payload, status = self.request.payload, self.status[ended.origin.ring]
        completion = Signal(completion_layout())
        m.d.comb += [
            completion.number.eq(status.completions + 1),
            completion.descriptor.eq(ended.origin.descriptor),
            completion.id.eq(ended.id),
            completion.cause.eq(ended.cause),
        ]
        place = self._beat(
            m, ended.origin.ring, status.completions, Const(DESCRIPTOR_BEATS), "completion"
        )
        m.d.sync += [
            payload.data.eq(completion),
            payload.strobe.eq((1 << _COMPLETION // 8) - 1),
            payload.address.eq(place),
        ]

    def _beat(self, m: Any, ring: Any, count: Any, beat: Any, name: str) -> Any:
        """Return the address of a beat in the slot for descriptor or completion ``count``."""
        control = self.settings[ring]
        inside = Signal(32, name=f"{name}_inside")
        slot = Signal(32, name=f"{name}_slot")
        m.d.comb += [
            inside.eq((1 << control.size) - 1),
            slot.eq((control.base & ~inside) | (count & inside)),
        ]
        return Cat((beat | Const(0, _SLOT_BEAT_BITS))[:_SLOT_BEAT_BITS], slot)
