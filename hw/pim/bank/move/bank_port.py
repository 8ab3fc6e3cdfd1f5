"""Memory port of a bank, shared by loader and storer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import hold
from hw.pim.config import BEAT_BYTES, PimConfig
from hw.pim.memory.memory_port import (
    MEMORY_TAG_BITS,
    memory_request_layout,
    memory_response_layout,
    write_request_layout,
)

__all__ = [
    "READ_TAG_BITS",
    "BankPort",
    "read_request_layout",
    "read_response_layout",
]

READ_TAG_BITS = MEMORY_TAG_BITS - 1
"""Width of the tags that identify the loader's reads."""


def read_request_layout(config: PimConfig) -> data.StructLayout:
    """Return the layout of a loader's read; ``address`` counts beats."""
    address = memory_request_layout(config)["address"].shape
    return data.StructLayout({"address": address, "tag": READ_TAG_BITS})


def read_response_layout() -> data.StructLayout:
    """Return the layout of the answer to a loader's read."""
    return data.StructLayout({"data": 8 * BEAT_BYTES, "tag": READ_TAG_BITS})


class BankPort(wiring.Component):
    """Arbiter of the storer's writes and the loader's reads; writes go first.

    It also returns responses to loader or storer. A request leaves one cycle after it arrives, a
    response in the same cycle. A read keeps the loader's tag; all writes have tag 32.

    Members
    -------
    read : In(stream of :func:`read_request_layout`)
    write : In(stream of :func:`~hw.pim.memory.memory_port.write_request_layout`)
    answer : Out(stream of :func:`read_response_layout`)
        ``ready`` is ignored.
    written : Out(1)
        Pulse: a write has been answered.
    request : Out(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
        Its ``ready`` drives those of ``read`` and ``write`` combinationally.
    response : In(stream of :func:`~hw.pim.memory.memory_port.memory_response_layout`)
        ``ready`` is always 1.
    """

    def __init__(self, config: PimConfig) -> None:
        super().__init__(
            {
                "read": In(stream.Signature(read_request_layout(config))),
                "write": In(stream.Signature(write_request_layout(config))),
                "answer": Out(stream.Signature(read_response_layout())),
                "written": Out(1),
                "request": Out(stream.Signature(memory_request_layout(config))),
                "response": In(stream.Signature(memory_response_layout())),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        read, write, request, response = (
            self.read.payload,
            self.write.payload,
            self.request.payload,
            self.response.payload,
        )
        room, writes = Signal(), Signal()
        m.d.comb += [
            room.eq(~self.request.valid | self.request.ready),
            writes.eq(room & self.write.valid),
            self.write.ready.eq(room),
            self.read.ready.eq(room & ~self.write.valid),
        ]
        with m.If(room):
            m.d.sync += self.request.valid.eq(self.write.valid | self.read.valid)
        header = hold(
            m,
            room & (self.write.valid | self.read.valid),
            "request",
            address=Mux(self.write.valid, write.address, read.address),
            tag=Mux(self.write.valid, 1 << READ_TAG_BITS, read.tag),
            write=self.write.valid,
        )
        written = hold(m, writes, "written", data=write.data, strobe=write.strobe)
        m.d.comb += [
            request.address.eq(header.address),
            request.tag.eq(header.tag),
            request.write.eq(header.write),
            request.data.eq(written.data),
            request.strobe.eq(written.strobe),
        ]
        is_write = response.tag[READ_TAG_BITS]
        m.d.comb += [
            self.response.ready.eq(1),
            self.answer.valid.eq(self.response.valid & ~is_write),
            self.answer.payload.data.eq(response.data),
            self.answer.payload.tag.eq(response.tag),
            self.written.eq(self.response.valid & is_write),
        ]
        return m
