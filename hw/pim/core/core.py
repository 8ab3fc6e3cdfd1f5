"""Core of the programmable PIM: processor, scratchpad, registers and ports."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw.axi.bus import AXI4LiteSignature, Response
from hw.csr.bank import CSR_DATA_WIDTH
from hw.logic.storage import NEVER_BOTH
from hw.pim.config import BEAT_BYTES, PimConfig
from hw.pim.core.gathering import GatheredMemory
from hw.pim.core.layouts import CoreCause, core_control_layout, core_status_layout
from hw.pim.core.processor import Processor
from hw.pim.memory.memory_port import (
    HOST_TAG_BITS,
    host_response_layout,
    memory_request_layout,
    nowhere,
)
from hw.pim.registers.pool_registers import REGISTERS_ADDR_WIDTH, RING_BYTES, RINGS_OFFSET_BYTES

__all__ = ["Core"]

_LINE_WORDS = BEAT_BYTES // 4
_SCRATCHPAD = 0x1000_0000
_WINDOW_0 = 0x4000_0000
_OWN_REGISTERS = 0x8000_0000
_POOL_REGISTERS = 0x8001_0000
_WINDOWS = 8
_TAIL, _STOP = 2, 4
"""Numbers of the core's own registers that act on a write."""
_MASTER_BYTES = 0x18
"""Bytes of a ring's registers that its master writes: base, size and head."""


class Core(wiring.Component):
    """Core of docs/pim-spec.md, "The programmable PIM".

    It serves the processor's accesses one after the other. A word takes three or four cycles and a
    line eleven, plus the latency of the place if it is not in the scratchpad.

    Parameters
    ----------
    config
        The pool.

    Members
    -------
    number : In(2)
        Number of the core.
    control : In(:func:`~hw.pim.core.layouts.core_control_layout`)
    status : Out(:func:`~hw.pim.core.layouts.core_status_layout`)
        Control from the host, and status for it.
    overfilled : In(1)
        There are more descriptors in the core's ring than slots.
    resting : In(1)
        No work of the core's ring is in flight. The core does not begin earlier.
    notice : Out(1)
        Pulse: a kernel is done, or the core is stopped for a cause.
    request : Out(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    response : In(stream of :func:`~hw.pim.memory.memory_port.host_response_layout`)
        Requests to the memory, with tags of 0, and its responses; always taken.
    m_axi : Out(:class:`~hw.axi.bus.AXI4LiteSignature`)
        To the pool's registers.
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        axi = AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
        request = memory_request_layout(config, tag_bits=HOST_TAG_BITS)
        super().__init__(
            {
                "number": In(2),
                "control": In(core_control_layout()),
                "status": Out(core_status_layout()),
                "overfilled": In(1),
                "resting": In(1),
                "notice": Out(1),
                "request": Out(stream.Signature(request)),
                "response": In(stream.Signature(host_response_layout(tag_bits=HOST_TAG_BITS))),
                "m_axi": Out(axi),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config, axi, running = self._config, self.m_axi, self.status.running
        m.submodules.processor = processor = Processor(start=_WINDOW_0)
        m.submodules.memory = port = GatheredMemory(config)
        m.submodules.scratchpad = scratchpad = memory.Memory(
            shape=8 * BEAT_BYTES,
            depth=config.scratchpad_bytes // BEAT_BYTES,
            init=[],
            attrs=NEVER_BOTH,
        )
        scratch_write, scratch_read = scratchpad.write_port(granularity=8), scratchpad.read_port()
        wiring.connect(m, port.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), port.response)

        # The present access, its line, and the words of the line that are left to answer.
        current = Signal(
            data.StructLayout({"address": 32, "data": 32, "strobe": 4, "write": 1, "fetch": 1}),
            name="asked",
        )
        line, left = Signal(8 * BEAT_BYTES), Signal(range(_LINE_WORDS))
        address, word, write = current.address, current.address[2:5], current.write
        fault, where, quiet, own_write = Signal(CoreCause), Signal(32), Signal(), Signal()
        done = Signal()
        m.d.comb += done.eq(own_write & (address[2:7] == _TAIL))
        begins = self._live(m, fault, where, quiet, done)
        windows = [(self.control.base, self.control.size)]
        windows += [
            (Signal(32, name=f"base_{n}"), Signal(32, name=f"size_{n}")) for n in range(1, _WINDOWS)
        ]
        beat, offset, window = Signal(33), address[5:27], address[27:30]
        shown = offset < Array(size for _, size in windows)[window]
        away = Signal()
        exists, value, writable = self._registers(m, windows, current, own_write, begins, away)
        buses = ((1, processor.fetch), (0, processor.access))
        m.d.comb += [
            processor.hold.eq(~running),
            where.eq(address),
            beat.eq(Array(base for base, _ in windows)[window] + offset),
            port.beat.eq(beat),
            port.data.eq(current.data.replicate(_LINE_WORDS)),
            port.strobe.eq(current.strobe << (word << 2)),
            port.at_once.eq(address[31]),
            port.drop.eq(~running),
            scratch_write.addr.eq(address[5:]),
            scratch_write.data.eq(port.data),
            scratch_read.addr.eq(address[5:]),
            axi.araddr.eq(address),
            axi.awaddr.eq(address),
            axi.wdata.eq(current.data.replicate(2)),
            axi.wstrb.eq(Mux(address[2], 0xF0, 0x0F)),
            axi.rready.eq(1),
            axi.bready.eq(1),
            *(bus.read_data.eq(line.word_select(word, 32)) for _, bus in buses),
        ]
        for channel in ("ar", "aw", "w"):
            with m.If(getattr(axi, f"{channel}ready")):
                m.d.sync += getattr(axi, f"{channel}valid").eq(0)

        def refuse(cause: CoreCause) -> None:
            # A prefetch past a jump may have any address. Zeros are no valid instruction.
            with m.If(~current.fetch):
                m.d.comb += fault.eq(cause)
            m.d.sync += line.eq(0)
            m.next = "ANSWER"

        with m.FSM(name="access"):
            with m.State("IDLE"):
                m.d.comb += quiet.eq(port.quiet)
                for is_fetch, bus in buses:
                    with m.If(running & bus.valid):
                        m.d.sync += [
                            address.eq(bus.address << 2),
                            current.data.eq(bus.data),
                            current.strobe.eq(bus.strobe),
                            write.eq(bus.write),
                            current.fetch.eq(is_fetch),
                            left.eq(Mux(bus.burst, _LINE_WORDS - 1, 0)),
                        ]
                        m.next = "CHECK"
            with m.State("CHECK"):
                whole = current.strobe.all()
                own_ring = RINGS_OFFSET_BYTES // RING_BYTES + 1 + self.number
                in_own_ring = address[:REGISTERS_ADDR_WIDTH] // RING_BYTES == own_ring
                with m.If(~running):
                    m.next = "IDLE"
                with m.Elif(address[31] & current.fetch):
                    refuse(CoreCause.UNMAPPED)
                with m.Elif(address[31] & ~port.quiet):
                    m.d.comb += [port.flush.eq(1), away.eq(1)]
                with m.Elif(address[30] & ~shown):
                    refuse(CoreCause.WINDOW)
                with m.Elif(address[30] & nowhere(config, beat)):
                    refuse(CoreCause.MEMORY)
                with m.Elif(address[30]):
                    m.d.comb += [port.write.eq(write), port.read.eq(~write), away.eq(1)]
                    with m.If(port.taken & write):
                        m.next = "ANSWER"
                    with m.Elif(port.taken):
                        m.next = "WAIT"
                with m.Elif(
                    (address >= _SCRATCHPAD) & (address < _SCRATCHPAD + config.scratchpad_bytes)
                ):
                    with m.If(write):
                        m.d.comb += scratch_write.en.eq(port.strobe)
                        m.next = "ANSWER"
                    with m.Else():
                        m.next = "SCRATCHPAD"
                with m.Elif((address[7:] == _OWN_REGISTERS >> 7) & exists):
                    m.d.sync += line.eq(value.replicate(_LINE_WORDS))
                    m.next = "ANSWER"
                    with m.If(write & ~(writable & whole)):
                        refuse(CoreCause.REGISTER)
                    with m.Elif(write & (address[2:7] == _STOP)):
                        m.d.comb += where.eq(current.data)
                        refuse(CoreCause.STOP)
                    with m.Elif(write):
                        m.d.comb += own_write.eq(1)
                with m.Elif(address[13:] == _POOL_REGISTERS >> 13):
                    master_writes = address[: exact_log2(RING_BYTES)] < _MASTER_BYTES
                    with m.If(write & ~(in_own_ring & master_writes & whole)):
                        refuse(CoreCause.REGISTER)
                    with m.Else():
                        m.d.sync += [
                            axi.arvalid.eq(~write),
                            axi.awvalid.eq(write),
                            axi.wvalid.eq(write),
                        ]
                        m.next = "POOL"
                with m.Else():
                    refuse(CoreCause.UNMAPPED)
            with m.State("SCRATCHPAD"):
                m.d.sync += line.eq(scratch_read.data)
                m.next = "ANSWER"
            with m.State("WAIT"):
                m.d.comb += away.eq(1)
                with m.If(port.o_valid):
                    m.d.sync += line.eq(port.o_data)
                    m.next = "ANSWER"
            with m.State("POOL"), m.If(axi.rvalid | axi.bvalid):
                m.d.sync += line.eq(axi.rdata.word_select(address[2], 32).replicate(_LINE_WORDS))
                m.next = "ANSWER"
                with m.If(Mux(write, axi.bresp, axi.rresp) != Response.OKAY):
                    refuse(CoreCause.REGISTER)
            with m.State("ANSWER"):
                m.d.comb += [bus.ack.eq(current.fetch == is_fetch) for is_fetch, bus in buses]
                m.d.sync += [address.eq(address + 4), left.eq(left - 1)]
                with m.If(left == 0):
                    m.next = "IDLE"
        return m

    def _live(self, m: Any, fault: Any, where: Any, quiet: Any, done: Any) -> Any:
        """Start and stop the processor; return the pulse with which it begins."""
        control, status = self.control, self.status
        cycles, own, begins = Signal(32), Signal(CoreCause), Signal()
        with m.If((control.limit != 0) & (cycles == control.limit)):
            m.d.comb += own.eq(CoreCause.LIMIT)
        with m.Elif(self.overfilled):
            m.d.comb += own.eq(CoreCause.RING)
        cause = Mux(own == CoreCause.NONE, fault, own)
        # The limit counts busy cycles: an idle core, or a write of TAIL, restarts the count.
        m.d.sync += cycles.eq(Mux(status.running & ~status.idle & ~done, cycles + 1, 0))
        with m.If(~control.run):
            m.d.sync += [status.running.eq(0), status.cause.eq(CoreCause.NONE)]
        with m.Elif(status.running & (cause != CoreCause.NONE.value)):
            m.d.comb += self.notice.eq(1)
            m.d.sync += [
                status.running.eq(0),
                status.cause.eq(cause),
                status.address.eq(Mux(own == CoreCause.NONE, where, 0)),
            ]
        with m.Elif(quiet & self.resting & ~status.running & (status.cause == CoreCause.NONE)):
            m.d.comb += begins.eq(1)
            m.d.sync += status.running.eq(1)
        return begins

    def _registers(
        self, m: Any, windows: Any, current: Any, write: Any, begins: Any, away: Any
    ) -> tuple[Any, Any, Any]:
        """Place the core's own registers.

        Return whether one is at the address, its value, and whether it can be written.
        """
        control, status = self.control, self.status
        exists, value, writable = Signal(), Signal(32), Signal()
        time, memory_time = Signal(32), Signal(32)
        m.d.sync += [time.eq(time + 1), memory_time.eq(memory_time + away)]
        waits = Signal()
        m.d.comb += status.idle.eq(waits & (control.head == status.tail))
        kept = {_TAIL: status.tail, 3: waits, _STOP: Signal(), 5: status.reason}
        shown = {0: self._config.cores << 8 | self.number, 1: control.head, 6: time, 7: memory_time}
        for number, window in enumerate(windows):
            for which, register in enumerate(window):
                (kept if number else shown)[16 + 2 * number + which] = register
        with m.Switch(current.address[2:7]):
            for number, register in (kept | shown).items():
                with m.Case(number):
                    m.d.comb += [exists.eq(1), value.eq(register), writable.eq(number in kept)]
                    if number in kept:
                        with m.If(write):
                            m.d.sync += register.eq(current.data)
                            m.d.comb += self.notice.eq(number == _TAIL)
        with m.If(begins):
            m.d.sync += [register.eq(0) for register in kept.values()]
        return exists, value, writable
