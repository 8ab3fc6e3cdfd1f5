"""Queue of host requests and the fixed latency of host reads."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.axdimm.host_link import HostLinkSignature
from hw.kernel.registers import WINDOW_ADDR_WIDTH
from hw.logic.checks import check_int
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
"""Bits of a read's number: eight for its place in the result memory, one of generation."""


MIN_READ_LATENCY = 5
"""Least latency of host reads in fabric cycles: with less the answers of the arbiter's own
registers would be late."""

MAX_READ_LATENCY = 2 << (TAG_BITS - 1)
"""Greatest latency of host reads in fabric cycles: they come every second cycle, and each has a
place until it is answered."""

_SPARE_LINES = 4


class Target(enum.Enum, shape=2):
    """Whom a request is for."""

    MEMORY = 0
    KERNEL = 1
    ARBITER = 2


def target_of(line: Any) -> Value:
    """Whom a request of ``line`` is for: the register windows are the last of the addresses."""
    window = line[WINDOW_ADDR_WIDTH - LINE_BYTE_BITS :]
    registers = window[1:].all()
    return Cat(registers & ~window[0], registers & window[0])


class HostRequest(data.StructLayout):
    """A request of the host.

    ``target`` follows from ``line``, and is here because much waits for it. ``tag`` numbers the
    reads of a port that takes their results in any order. Bytes of ``data`` whose bit of
    ``strobes`` is clear are not written. ``bad`` asks for nothing but a refusal.
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
    """What became of a read: its data, or ``ok`` low if nobody would answer it."""

    def __init__(self) -> None:
        super().__init__({"tag": TAG_BITS, "ok": 1, "data": LINE_BITS})


class HostPort(wiring.Component):
    """Takes requests at the link's pace and answers each read after a fixed time.

    Every read taken from ``o`` must be given exactly one result on ``i``, in any order. A result
    that is not there ``read_latency`` fabric cycles after the request is late: the host gets
    ``rsp_late`` in its place and the data is dropped when it comes.

    After reset the port needs 256 fabric cycles before it takes requests.

    Parameters
    ----------
    address_width
        Byte address width of the channel.
    read_latency
        Fabric cycles from ``req_valid`` to ``rsp_valid``, from 5 to 512: at the link's pace 256
        reads, which is what the result memory holds.
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
    """

    side = "link"
    """The member that the host is connected to."""

    in_order = False
    """Results of reads come in any order; writes have none."""

    def __init__(
        self, *, address_width: int, read_latency: int = 48, queue_lines: int = 128
    ) -> None:
        check_int("read_latency", read_latency, MIN_READ_LATENCY, MAX_READ_LATENCY)
        check_int("queue_lines", queue_lines, 8, 128)
        self.read_latency = read_latency
        """Fabric cycles from a read's request to its answer, for the register that tells."""
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
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        places = 1 << (TAG_BITS - 1)
        # Of whole lines only. Where a request goes depends on all but its data.
        asked = data.StructLayout(
            {"write": 1, "target": Target, "line": self._line_width, "tag": TAG_BITS}
        )
        m.submodules.queue = queue = StreamFifo(shape=asked, depth=self._queue_lines, early=True)
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
            queue.i.payload.write.eq(self.link.req_write),
            queue.i.payload.target.eq(target_of(self.link.req_line)),
            queue.i.payload.line.eq(self.link.req_line),
            queue.i.payload.tag.eq(tag),
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
            *(self.o.payload[name].eq(queue.o.payload[name]) for name, _ in asked),
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

        # One bit a cycle for "a read was requested" and "it was lost", as long as the latency.
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
        with m.If(due & ~due_lost):
            m.d.sync += due_tag.eq(due_tag + 1)

        expected = Signal()
        m.d.sync += [
            self.link.rsp_valid.eq(due),
            expected.eq(due_tag[-1]),
        ]
        # A result that comes in the cycle in which it is due is late, whatever the memory gives.
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
