"""Memory port of a core, which gathers writes to one beat."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import BEAT_BYTES, PimConfig
from hw.pim.memory.memory_port import (
    HOST_TAG_BITS,
    host_response_layout,
    memory_request_layout,
)

__all__ = ["GatheredMemory"]

_MOST_WRITES = 7


class GatheredMemory(wiring.Component):
    """Memory port that reads beats and gathers partial writes to one beat.

    The gathered beat goes to the memory before a read, before a write to another beat, and on
    request. So reads see all earlier writes. Up to seven writes are in flight while other accesses
    go on.

    Parameters
    ----------
    config
        The pool.

    Members
    -------
    beat, data, strobe : In, In(256), In(32)
        A beat's address, and the bytes to write to it.
    write, read : In(1)
        Begin a write or a read; to be held until ``taken``.
    at_once : In(1)
        With ``write``: it goes to the memory without waiting for more.
    flush : In(1)
        Send the gathered beat to the memory.
    drop : In(1)
        Forget the gathered beat.
    taken : Out(1)
        The write is done, or the read is on its way; ``o_valid`` and ``o_data`` answer it.
    quiet : Out(1)
        All writes are in the memory.
    o_valid, o_data : Out(1), Out(256)
    request : Out(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    response : In(stream of :func:`~hw.pim.memory.memory_port.host_response_layout`)
        With tags of 0; always taken.
    """

    def __init__(self, config: PimConfig) -> None:
        self._request = memory_request_layout(config, tag_bits=HOST_TAG_BITS)
        super().__init__(
            {
                "beat": In(self._request["address"].shape),
                "data": In(8 * BEAT_BYTES),
                "strobe": In(BEAT_BYTES),
                **dict.fromkeys(("write", "read", "at_once", "flush", "drop"), In(1)),
                "taken": Out(1),
                "quiet": Out(1),
                "o_valid": Out(1),
                "o_data": Out(8 * BEAT_BYTES),
                "request": Out(stream.Signature(self._request)),
                "response": In(stream.Signature(host_response_layout(tag_bits=HOST_TAG_BITS))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        request, response = self.request, self.response
        held, urgent = Signal(self._request), Signal()
        under_way = Signal(range(_MOST_WRITES + 1))
        holds = held.strobe.any()
        fits = ~holds | (~urgent & (held.address == self.beat))
        room, sends = Signal(), Signal()
        done = response.valid & response.payload.write
        m.d.comb += [
            room.eq((~request.valid | request.ready) & (under_way != _MOST_WRITES)),
            sends.eq(holds & room & (urgent | self.flush | self.read | (self.write & ~fits))),
            self.taken.eq((self.write & fits) | (self.read & ~holds & room)),
            self.quiet.eq(~holds & (under_way == 0)),
            response.ready.eq(1),
            self.o_valid.eq(response.valid & ~response.payload.write),
            self.o_data.eq(response.payload.data),
        ]
        m.d.sync += under_way.eq(under_way + sends - done)
        with m.If(request.ready):
            m.d.sync += request.valid.eq(0)
        with m.If(sends):
            m.d.sync += [request.valid.eq(1), request.payload.eq(held), request.payload.write.eq(1)]
        with m.If(self.taken & self.read):
            m.d.sync += [request.valid.eq(1), request.payload.write.eq(0)]
            m.d.sync += request.payload.address.eq(self.beat)
        with m.If(self.taken & self.write):
            m.d.sync += [
                held.address.eq(self.beat),
                held.strobe.eq(held.strobe | self.strobe),
                urgent.eq(self.at_once),
                held.data.eq(
                    Cat(
                        Mux(self.strobe[byte], self.data[8 * byte :][:8], held.data[8 * byte :][:8])
                        for byte in range(BEAT_BYTES)
                    )
                ),
            ]
        with m.If(sends | self.drop):
            m.d.sync += [held.strobe.eq(0), urgent.eq(0)]
        return m
