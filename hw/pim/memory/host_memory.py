"""Memory port for host, rings and cores; the host sees results of completed works only."""

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
"""Maximum number of the host's requests in flight."""

_BEAT_WORD_BITS = BEAT_WORDS.bit_length() - 1


class HostCause(enum.Enum, shape=4):
    """Cause of an error response to the host."""

    NONE = 0
    NO_MEMORY = 1
    """Beat in no bank's memory."""


@cache
def host_status_layout() -> data.StructLayout:
    """Return the layout of the host port's status.

    ``starts`` counts the works started, ``errors`` the requests answered with an error, both modulo
    2^32. ``cause``, ``address`` (of its beat, in bytes) and ``write`` describe the last error.
    """
    return data.StructLayout(
        {"starts": 32, "errors": 32, "address": 48, "write": 1, "cause": HostCause}
    )


class GateSignature(wiring.Signature):
    """Control of the host's port by the scheduler; the port has it as ``In``.

    Members
    -------
    closing : Out(1)
        A work is about to start: send no more reads to the memory.
    closed : In(1)
        With ``closing``: all reads have been answered.
    start : Out(1)
        Pulse, after ``closed``: the work of ``slot`` starts, with its result in ``span``. The port
        may open in the next cycle.
    slot : Out(range(config.works))
    span : Out(:attr:`Jobs.span <hw.pim.work.layouts.Jobs.span>`)
    completed : Out(config.works)
        Pulse for each slot: its work has completed.
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
    """Memory port that holds host reads from results of running works.

    See docs/pim-spec.md, "Consistency". A read in the result span of a running work waits until the
    work has completed; the host's later requests wait behind it. A read that is already in the
    memory delays the start of a work until it is answered. So a read returns the data from before
    or after a work. Writes are not ordered with works.

    A request for a beat that no bank holds does not reach the memory. It is answered with an error,
    in a cycle without a memory response.

    Inner requests, those of rings and cores, never wait for host reads. They reach the memory in
    order with the host's writes. So the host may ring once its writes of a descriptor are taken.
    Responses to inner requests must be taken at once.

    A request reaches the memory two cycles later; the port passes one request a cycle. The memory's
    responses are always taken; the host may leave up to :data:`OUTSTANDING` of its own waiting.

    Parameters
    ----------
    config
        The pool: size of the stack, and works in flight.

    Members
    -------
    request, inner_request : \
In(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    response, inner_response : \
Out(stream of :func:`~hw.pim.memory.memory_port.host_response_layout`)
        Requests and responses of the host, and inner ones. Tags have ``HOST_TAG_BITS``.
    memory_request : Out(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    memory_response : In(stream of :func:`~hw.pim.memory.memory_port.memory_response_layout`)
        Requests to the memory, and its responses, in any order.
    gate : In(:class:`GateSignature`)
    status : Out(:func:`host_status_layout`)
        Status of the port for the registers.
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
        # Room for the host's responses is reserved when its requests are taken. So neither the
        # memory nor a held request ever waits for the host.
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
        # `earlier`: the host's held request is a write that was taken before the inner request.
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
        """Hold a request of one side until it moves on or is refused, and pass its answers on.

        Return whether, in this cycle, a request is taken, and whether the held one moves on, leaves
        and stays.
        """
        offered, answered = getattr(self, f"{prefix}request"), self.memory_response
        m.submodules[f"{prefix}responses"] = responses = StreamFifo(
            shape=host_response_layout(tag_bits=HOST_TAG_BITS), depth=depth
        )
        given = wiring.flipped(getattr(self, f"{prefix}response"))
        wiring.connect(m, given, responses.o)
        holds, moves, refused, stays = (
            Signal(name=f"{prefix}{name}") for name in ("holds", "moves", "refused", "stays")
        )
        taken = offered.valid & offered.ready
        missing = nowhere(self._config, held.address)
        answers = answered.valid & (answered.payload.tag[HOST_TAG_BITS] == bool(prefix))
        response = responses.i.payload
        m.d.comb += [
            moves.eq(holds & turn & ~missing & free),
            refused.eq(holds & turn & missing & ~answers),
            stays.eq(holds & ~(moves | refused)),
            offered.ready.eq(~stays & room),
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
            m.d.sync += [holds.eq(taken), held.eq(offered.payload)]
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
        """Drive ``meets``: the beat at ``address`` is in a running work's result."""
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
