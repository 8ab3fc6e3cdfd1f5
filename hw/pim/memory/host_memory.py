"""The host's port to the memory of the stack, which shows results of completed works only."""

from __future__ import annotations

from functools import cache
from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import BEAT_BYTES, PimConfig
from hw.pim.memory.memory_port import (
    host_response_layout,
    memory_request_layout,
    memory_response_layout,
)
from hw.pim.work.layouts import BEAT_WORDS, Jobs
from hw.stream.fifo import StreamFifo

__all__ = ["OUTSTANDING", "GateSignature", "HostCause", "HostMemory", "host_status_layout"]

OUTSTANDING = 32
"""Requests of the host that are under way at most."""

_BEAT_WORD_BITS = BEAT_WORDS.bit_length() - 1


class HostCause(enum.Enum, shape=4):
    """Why a request of the host was answered with an error."""

    NONE = 0
    NO_MEMORY = 1
    """No bank holds the beat."""


@cache
def host_status_layout() -> data.StructLayout:
    """What the registers tell of the host's port.

    ``starts``: works that have started; ``errors``: requests that were answered with an error; both
    modulo 2^32. Of the last of these ``cause``, ``address``, in bytes, of its beat, and ``write``.
    """
    return data.StructLayout(
        {"starts": 32, "errors": 32, "address": 48, "write": 1, "cause": HostCause}
    )


class GateSignature(wiring.Signature):
    """What the scheduler tells the host's port; the port has it as ``In``.

    Members
    -------
    closing : Out(1)
        A work is about to start: let no more reads into the memory.
    closed : In(1)
        With ``closing``: all reads have been answered.
    start : Out(1)
        A pulse, after ``closed``: the work of ``slot`` starts, with its result in ``span``. The
        port may be open from the next cycle on.
    slot : Out(range(config.works))
    span : Out(:attr:`Jobs.span <hw.pim.work.layouts.Jobs.span>`)
    completed : Out(config.works)
        A pulse for each slot: its work has completed.
    """

    def __init__(self, config: PimConfig) -> None:
        super().__init__(
            {
                "closing": Out(1),
                "closed": In(1),
                "start": Out(1),
                "slot": Out(range(config.works)),
                "span": Out(Jobs(config).span),
                "completed": Out(config.works),
            }
        )


class HostMemory(wiring.Component):
    """Keeps reads of the host from results of running works (docs/pim-spec.md, "Consistency").

    A read that meets the result's span of a running work waits until the work has completed, and
    what the host asked for after it waits behind it. A read that is already in the memory when a
    work is to start keeps the start waiting until it is answered. So a read gives what was there
    before a work or what is there after it. Writes are not ordered with works.

    A request for a beat that no bank holds does not reach the memory: it is answered with an error,
    in a cycle in which the memory answers nothing.

    A request reaches the memory two cycles later, one in each cycle. The memory's responses are
    always taken; the host may leave up to :data:`OUTSTANDING` where they are.

    Parameters
    ----------
    config
        Size of the stack, and the works that may run at once.

    Members
    -------
    request : In(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    response : Out(stream of :func:`~hw.pim.memory.memory_port.host_response_layout`)
        Requests of the host, and responses to it.
    memory_request : Out(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    memory_response : In(stream of :func:`~hw.pim.memory.memory_port.memory_response_layout`)
        Requests to the memory, and its responses, in any order.
    gate : In(:class:`GateSignature`)
    status : Out(:func:`host_status_layout`)
        What the registers tell of the port.
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        request = memory_request_layout(config)
        super().__init__(
            {
                "request": In(stream.Signature(request)),
                "response": Out(stream.Signature(host_response_layout())),
                "memory_request": Out(stream.Signature(request)),
                "memory_response": In(stream.Signature(memory_response_layout())),
                "gate": In(GateSignature(config)),
                "status": Out(host_status_layout()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        asked, sent = self.request, self.memory_request
        answered, given = self.memory_response, self.response
        m.submodules.responses = responses = StreamFifo(
            shape=host_response_layout(), depth=OUTSTANDING
        )
        wiring.connect(m, wiring.flipped(given), responses.o)

        # Room for the response is set aside with the request, so the memory never waits.
        under_way = Signal(range(OUTSTANDING + 1))
        reads = Signal(range(OUTSTANDING + 1))
        move, refuse, answer = Signal(), Signal(), Signal()
        held = Signal(memory_request_layout(self._config))
        holds, meets, nowhere = Signal(), Signal(), Signal()
        self._meet(m, held.address, meets)
        self._find(m, held.address, nowhere)
        response = responses.i.payload
        m.d.comb += [
            responses.i.valid.eq(answered.valid | refuse),
            response.error.eq(refuse),
            answered.ready.eq(1),
            answer.eq(answered.valid),
            move.eq(
                holds
                & ~nowhere
                & (held.write | ~(self.gate.closing | meets))
                & (under_way != OUTSTANDING)
                & (sent.ready | ~sent.valid)
            ),
            refuse.eq(holds & nowhere & (under_way != OUTSTANDING) & ~answered.valid),
            asked.ready.eq(~holds | move | refuse),
            self.gate.closed.eq(reads == 0),
        ]
        with m.If(refuse):
            m.d.comb += [response.tag.eq(held.tag), response.write.eq(held.write)]
            self._report(m, held)
        with m.Else():
            m.d.comb += [
                getattr(response, name).eq(getattr(answered.payload, name))
                for name in ("data", "tag", "write")
            ]
        m.d.sync += [
            self.status.starts.eq(self.status.starts + self.gate.start),
            under_way.eq(under_way + (move | refuse) - (given.valid & given.ready)),
            reads.eq(reads + (move & ~held.write) - (answer & ~answered.payload.write)),
        ]
        with m.If(asked.ready):
            m.d.sync += [holds.eq(asked.valid), held.eq(asked.payload)]
        with m.If(move):
            m.d.sync += [sent.valid.eq(1), sent.payload.eq(held)]
        with m.Elif(sent.ready):
            m.d.sync += sent.valid.eq(0)
        return m

    def _report(self, m: Any, refused: Any) -> None:
        status = self.status
        m.d.sync += [
            status.errors.eq(status.errors + 1),
            status.cause.eq(HostCause.NO_MEMORY),
            status.write.eq(refused.write),
            status.address.eq(refused.address * BEAT_BYTES),
        ]

    def _find(self, m: Any, address: Any, nowhere: Any) -> None:
        """Whether no bank holds the beat at ``address``."""
        config = self._config
        local, start, end = (
            place // BEAT_BYTES
            for place in (config.local_bytes, config.striped_start_bytes, config.stack_bytes)
        )
        m.d.comb += nowhere.eq(((address >= local) & (address < start)) | (address >= end))

    def _meet(self, m: Any, address: Any, meets: Any) -> None:
        """Whether the beat at ``address`` is in a running work's result."""
        gate, works = self.gate, self._config.works
        beats = data.StructLayout({"low": len(address), "high": len(address)})
        closed = Signal(works)
        results = Signal(data.ArrayLayout(beats, works))
        with m.If(gate.start):
            m.d.sync += [
                results[gate.slot].low.eq(gate.span.low >> _BEAT_WORD_BITS),
                results[gate.slot].high.eq(gate.span.high >> _BEAT_WORD_BITS),
            ]
        m.d.sync += closed.eq((closed & ~gate.completed) | (gate.start << gate.slot))
        hits = Cat(
            (results[slot].low <= address) & (address <= results[slot].high)
            for slot in range(works)
        )
        m.d.comb += meets.eq((closed & hits).any())
