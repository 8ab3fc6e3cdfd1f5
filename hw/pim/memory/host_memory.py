"""The way to the memory from outside the banks; the host sees results of completed works only."""

from __future__ import annotations

from functools import cache
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import BEAT_BYTES, PimConfig
from hw.pim.memory.memory_port import (
    HOST_TAG_BITS,
    host_response_layout,
    memory_request_layout,
    memory_response_layout,
    nowhere,
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
    """Keeps reads of the host from results of running works (docs/pim-spec.md, "Consistency"), and
    lets the requests of rings and cores pass by.

    A read that meets the result's span of a running work waits until the work has completed, and
    what the host asked for after it waits behind it. A read that is already in the memory when a
    work is to start keeps the start waiting until it is answered. So a read gives what was there
    before a work or what is there after it. Writes are not ordered with works.

    A request for a beat that no bank holds does not reach the memory: it is answered with an error,
    in a cycle in which the memory answers nothing.

    Requests from inside, of rings and cores, and writes of the host reach the memory in the order
    in which they were taken, and wait for nothing of the host's. So who has handed over the writes
    of a descriptor may ring. Responses to requests from inside must be taken at once.

    A request reaches the memory two cycles later, one in each cycle. The memory's responses are
    always taken; the host may leave up to :data:`OUTSTANDING` where they are.

    Parameters
    ----------
    config
        Size of the stack, and the works that may run at once.

    Members
    -------
    request, inner_request : \
In(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    response, inner_response : \
Out(stream of :func:`~hw.pim.memory.memory_port.host_response_layout`)
        Requests of the host, and responses to it; those from inside. Tags have ``HOST_TAG_BITS``.
    memory_request : Out(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    memory_response : In(stream of :func:`~hw.pim.memory.memory_port.memory_response_layout`)
        Requests to the memory, and its responses, in any order.
    gate : In(:class:`GateSignature`)
    status : Out(:func:`host_status_layout`)
        What the registers tell of the port.
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        request = stream.Signature(memory_request_layout(config, tag_bits=HOST_TAG_BITS))
        response = stream.Signature(host_response_layout(tag_bits=HOST_TAG_BITS))
        super().__init__(
            {
                "request": In(request),
                "inner_request": In(request),
                "response": Out(response),
                "inner_response": Out(response),
                "memory_request": Out(stream.Signature(memory_request_layout(config))),
                "memory_response": In(stream.Signature(memory_response_layout())),
                "gate": In(GateSignature(config)),
                "status": Out(host_status_layout()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        sent, answered, given = self.memory_request, self.memory_response, self.response
        # Room for the host's responses is set aside when its requests are taken, so neither the
        # memory nor a request that is held ever waits for the host.
        under_way = Signal(range(OUTSTANDING + 1))
        reads = Signal(range(OUTSTANDING + 1))
        room, free = under_way != OUTSTANDING, sent.ready | ~sent.valid
        request = memory_request_layout(self._config, tag_bits=HOST_TAG_BITS)
        held, inner = Signal(request), Signal(request)
        meets, earlier = Signal(), Signal()
        self._meet(m, held.address, meets)
        side = self._pass(m, inner, "inner_", turn=~earlier, free=free, room=1, depth=3)
        inner_taken, inner_moves, inner_leaves, _ = side
        free &= held.write | ~(self.gate.closing | meets)
        side = self._pass(m, held, "", turn=~inner_leaves, free=free, room=room, depth=OUTSTANDING)
        taken, moves, leaves, stays = side
        # That the host's request that is held is a write, and was taken before the inner one.
        with m.If(inner_taken):
            m.d.sync += earlier.eq(Mux(stays, held.write, taken & self.request.payload.write))
        with m.Elif(leaves):
            m.d.sync += earlier.eq(0)
        answers = answered.valid & ~answered.payload.tag[HOST_TAG_BITS]
        m.d.comb += [answered.ready.eq(1), self.gate.closed.eq(reads == 0)]
        m.d.sync += [
            self.status.starts.eq(self.status.starts + self.gate.start),
            under_way.eq(under_way + taken - (given.valid & given.ready)),
            reads.eq(reads + (moves & ~held.write) - (answers & ~answered.payload.write)),
        ]
        with m.If(sent.ready):
            m.d.sync += sent.valid.eq(0)
        fields = ("data", "strobe", "address", "write")
        for number, (request, moving) in enumerate(((held, moves), (inner, inner_moves))):
            with m.If(moving):
                m.d.sync += [
                    sent.valid.eq(1),
                    sent.payload.tag.eq(Cat(request.tag, Const(number, 1))),
                    *(getattr(sent.payload, name).eq(getattr(request, name)) for name in fields),
                ]
        return m

    def _pass(
        self, m: Any, held: Any, prefix: str, *, turn: Any, free: Any, room: Any, depth: int
    ) -> tuple[Any, Any, Any, Any]:
        """Holds a request of one side until it moves on, or is refused, and passes its answers on.

        Returns whether in this cycle one is taken, the one that is held moves on, leaves, and
        stays.
        """
        asked, answered = getattr(self, f"{prefix}request"), self.memory_response
        m.submodules[f"{prefix}responses"] = responses = StreamFifo(
            shape=host_response_layout(tag_bits=HOST_TAG_BITS), depth=depth
        )
        given = wiring.flipped(getattr(self, f"{prefix}response"))
        wiring.connect(m, given, responses.o)
        holds, moves, refused, stays = (
            Signal(name=f"{prefix}{name}") for name in ("holds", "moves", "refused", "stays")
        )
        taken = asked.valid & asked.ready
        missing = nowhere(self._config, held.address)
        answers = answered.valid & (answered.payload.tag[HOST_TAG_BITS] == bool(prefix))
        response = responses.i.payload
        m.d.comb += [
            moves.eq(holds & turn & ~missing & free),
            refused.eq(holds & turn & missing & ~answers),
            stays.eq(holds & ~(moves | refused)),
            asked.ready.eq(~stays & room),
            responses.i.valid.eq(answers | refused),
            response.error.eq(refused),
        ]
        with m.If(refused):
            m.d.comb += [response.tag.eq(held.tag), response.write.eq(held.write)]
            self._report(m, held)
        with m.Else():
            m.d.comb += [
                getattr(response, name).eq(getattr(answered.payload, name))
                for name in ("data", "tag", "write")
            ]
        with m.If(~stays):
            m.d.sync += [holds.eq(taken), held.eq(asked.payload)]
        return taken, moves, moves | refused, stays

    def _report(self, m: Any, refused: Any) -> None:
        status = self.status
        m.d.sync += [
            status.errors.eq(status.errors + 1),
            status.cause.eq(HostCause.NO_MEMORY),
            status.write.eq(refused.write),
            status.address.eq(refused.address * BEAT_BYTES),
        ]

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
