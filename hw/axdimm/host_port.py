"""Host port: the queue of host requests and the fixed latency of host reads."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.axdimm.host_link import HostLinkSignature
from hw.kernel.registers import WINDOW_ADDR_WIDTH
from hw.logic.checks import check_int
from hw.logic.held import parity_of
from hw.logic.line import LINE_BITS, LINE_BYTE_BITS, LINE_BYTES, line_width
from hw.logic.storage import NEVER_BOTH
from hw.stream.fifo import StreamFifo

__all__ = [
    "MAX_READ_LATENCY",
    "MIN_READ_LATENCY",
    "HostPort",
    "HostRequest",
    "HostResult",
    "Target",
    "target_of",
]

TAG_BITS = 9
"""Bits of a read's number: eight for its slot in the result memory, one for the generation."""


MIN_READ_LATENCY = 5
"""Minimum latency of host reads in fabric cycles; with less the arbiter's own registers would
answer late."""

MAX_READ_LATENCY = 2 << (TAG_BITS - 1)
"""Maximum latency of host reads in fabric cycles: a read can come every second cycle, and each
keeps its slot until it is answered."""

_SPARE_LINES = 4


class Target(enum.Enum, shape=2):
    """Destination of a request."""

    MEMORY = 0
    KERNEL = 1
    ARBITER = 2


def target_of(line: Any) -> Value:
    """Return the destination of a request for ``line``; register windows end the address range."""
    window = line[WINDOW_ADDR_WIDTH - LINE_BYTE_BITS :]
    registers = window[1:].all()
    return Cat(registers & ~window[0], registers & window[0])


class HostRequest(data.StructLayout):
    """A request of the host.

    ``target`` follows from ``line`` and is stored because much logic waits for it. ``tag`` numbers
    the reads of a port that takes results in any order. A byte of ``data`` is written only if its
    bit of ``strobes`` is set. A request with ``bad`` set is refused.
    """

    def __init__(self, *, line_width: int) -> None:
        super().__init__(
            {
                "write": 1,
                "target": Target,
                "line": line_width,
                "tag": TAG_BITS,
                "data": LINE_BITS,
                "strobes": LINE_BYTES,
                "bad": 1,
            }
        )


class HostResult(data.StructLayout):
    """Result of a read: its data, or ``ok`` low if nothing answers it."""

    def __init__(self) -> None:
        super().__init__({"tag": TAG_BITS, "ok": 1, "data": LINE_BITS})


class HostPort(wiring.Component):
    """Takes requests at the link's pace and answers each read after a fixed time.

    Each read taken from ``o`` must get exactly one result on ``i``, in any order. A result that is
    not there ``read_latency`` fabric cycles after the request is late: the host gets ``rsp_late``
    instead, and the data is dropped when it comes.

    After reset the port needs 256 fabric cycles before it takes requests.

    Parameters
    ----------
    address_width
        Byte address width of the channel.
    read_latency
        Fabric cycles from ``req_valid`` to ``rsp_valid``, from 5 to 512. At the link's pace 512
        cycles bring 256 reads, the depth of the result memory.
    queue_lines
        Requests held while the DRAM is busy, from 8 to 128. The longest refresh is 110 fabric
        cycles, in which 55 requests come.

    Members
    -------
    link : In(:class:`~hw.axdimm.host_link.HostLinkSignature`)
        The host.
    o : Out(stream of :class:`HostRequest`)
        Requests in order.
    i_valid, i : In(1), In(:class:`HostResult`)
        Results; always taken.
    late : Out(1)
        One cycle for each late read, the one after its answer.
    overflow : Out(1)
        One cycle for each request lost because the queue was full.
    empty : Out(1)
        No request is queued or on offer.
    tags_upset, request_upset : Out(1)
        One cycle after a bit was lost: of the tags of reads, which then are set right, or of a
        queued request, whose parity is not that with which it came.

    Examples
    --------
    >>> HostPort(address_width=30, read_latency=40).link.req_line.shape()
    unsigned(24)
    >>> HostPort(address_width=30, read_latency=4)
    Traceback (most recent call last):
        ...
    ValueError: read_latency must be an integer from 5 to 512, got 4
    """

    side = "link"
    """Name of the member that connects to the host."""

    in_order = False
    """Order of results: those of reads come in any order; writes have none."""

    def __init__(
        self, *, address_width: int, read_latency: int = 48, queue_lines: int = 128
    ) -> None:
        check_int("read_latency", read_latency, MIN_READ_LATENCY, MAX_READ_LATENCY)
        check_int("queue_lines", queue_lines, 8, 128)
        self.read_latency = read_latency
        """Fabric cycles from a read's request to its answer, shown in a register."""
        self._queue_lines = queue_lines
        self._line_width = line_width(address_width)
        super().__init__(
            {
                "link": In(HostLinkSignature(address_width=address_width)),
                "o": Out(stream.Signature(HostRequest(line_width=self._line_width))),
                "i_valid": In(1),
                "i": In(HostResult()),
                "late": Out(1),
                "overflow": Out(1),
                "empty": Out(1),
                "tags_upset": Out(1),
                "request_upset": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        places = 1 << (TAG_BITS - 1)
        # All strobes are set on the link. Apart from its data, everything in a request is needed
        # early in the cycle to dispatch it.
        header = data.StructLayout(
            {"write": 1, "target": Target, "line": self._line_width, "tag": TAG_BITS}
        )
        queued = data.StructLayout({"header": header, "odd": 1})
        m.submodules.queue = queue = StreamFifo(shape=queued, depth=self._queue_lines, early=True)
        m.submodules.queue_data = queue_data = StreamFifo(shape=LINE_BITS, depth=self._queue_lines)
        m.submodules.results = results = Memory(
            shape=data.StructLayout({"generation": 1, "ok": 1, "data": LINE_BITS}),
            depth=places,
            init=[],
            attrs=NEVER_BOTH,
        )
        write = results.write_port()
        read = results.read_port(transparent_for=[])

        # The result memory is cleared after reset: a stale generation would pass for data.
        sweep = Signal(TAG_BITS)
        ready = sweep[-1]
        with m.If(~ready):
            m.d.sync += sweep.eq(sweep + 1)

        # The first lap's generation is 1, which a cleared memory does not hold.
        tag = Signal(TAG_BITS, init=places)
        accept = Signal()
        lost = Signal()
        m.d.comb += [
            accept.eq(self.link.req_valid & ready & queue.i.ready),
            lost.eq(self.link.req_valid & ~accept),
            queue.i.valid.eq(self.link.req_valid & ready),
            queue.i.payload.header.write.eq(self.link.req_write),
            queue.i.payload.header.target.eq(target_of(self.link.req_line)),
            queue.i.payload.header.line.eq(self.link.req_line),
            queue.i.payload.header.tag.eq(tag),
            queue.i.payload.odd.eq(parity_of(queue.i.payload.header.as_value())),
            queue_data.i.valid.eq(queue.i.valid),
            queue_data.i.payload.eq(self.link.req_data),
            self.overflow.eq(lost),
            self.empty.eq((queue.level == 0) & ~queue.o.valid),
        ]
        m.d.sync += self.link.req_ready.eq(
            ready & (queue.level < self._queue_lines - 1 - _SPARE_LINES)
        )
        with m.If(accept & ~self.link.req_write):
            m.d.sync += tag.eq(tag + 1)
        m.d.comb += [
            self.o.valid.eq(queue.o.valid),
            queue.o.ready.eq(self.o.ready),
            queue_data.o.ready.eq(self.o.ready),
            *(self.o.payload[name].eq(queue.o.payload.header[name]) for name, _ in header),
            self.o.payload.data.eq(queue_data.o.payload),
            self.o.payload.strobes.eq(Const(-1, LINE_BYTES)),
        ]

        m.d.comb += [
            write.en.eq(self.i_valid | ~ready),
            write.addr.eq(self.i.tag[:-1]),
            write.data.generation.eq(self.i.tag[-1]),
            write.data.ok.eq(self.i.ok),
            write.data.data.eq(self.i.data),
        ]
        with m.If(~ready):
            m.d.comb += [write.addr.eq(sweep[:-1]), write.data.generation.eq(0)]

        # Shift registers as long as the latency: "a read was requested" and "it was lost".
        pending = Signal(self.read_latency - 1)
        pending_lost = Signal(self.read_latency - 1)
        m.d.sync += [
            pending.eq(Cat(self.link.req_valid & ~self.link.req_write, pending[:-1])),
            pending_lost.eq(Cat(lost & ~self.link.req_write, pending_lost[:-1])),
        ]
        due_tag = Signal(TAG_BITS, init=places)
        due = pending[-1]
        due_lost = pending_lost[-1]
        m.d.comb += [read.en.eq(due), read.addr.eq(due_tag[:-1])]
        quiet = ~pending.any()
        with m.If(due & ~due_lost):
            m.d.sync += due_tag.eq(due_tag + 1)
        with m.Elif(quiet):
            m.d.sync += due_tag.eq(tag)
        m.d.sync += [
            self.tags_upset.eq(quiet & (tag != due_tag)),
            self.request_upset.eq(queue.o.valid & parity_of(queue.o.payload.as_value())),
        ]

        expected = Signal()
        m.d.sync += [
            self.link.rsp_valid.eq(due),
            expected.eq(due_tag[-1]),
        ]
        # A result that comes in the cycle in which it is due is late, even if the memory gives it.
        answered_lost, just_late = Signal(), Signal()
        m.d.sync += [
            answered_lost.eq(due_lost),
            just_late.eq(write.en & (write.addr == read.addr)),
        ]
        m.d.comb += [
            self.link.rsp_data.eq(read.data.data),
            self.link.rsp_late.eq(
                self.link.rsp_valid
                & (answered_lost | just_late | (read.data.generation != expected) | ~read.data.ok)
            ),
        ]
        m.d.sync += self.late.eq(self.link.rsp_late & ~answered_lost)
        return m
