"""The arbiter of a channel: who owns the DRAM, and where host requests go."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.host_bridge import DramBridge, RegisterBridge
from hw.axdimm.host_link import HostLinkSignature
from hw.axdimm.host_port import HostPort
from hw.axdimm.registers import arbiter_map
from hw.axdimm.run_account import RunCountsSignature
from hw.axi.bus import AXI4LiteSignature, AXI4Signature
from hw.csr.bank import CsrBank
from hw.dram.controller import COUNTER_BITS
from hw.dram.interface import SLOTS
from hw.line import LINE_BITS, LINE_BYTE_BITS, LINE_BYTES

__all__ = ["WINDOW_BYTES", "Arbiter", "Mode"]

WINDOW_BYTES = 4096
"""Bytes of each register window at the top of the channel's addresses."""


class Mode(enum.Enum, shape=1):
    """The exclusive modes of paper section 3.2."""

    NORMAL = 0
    ACCELERATION = 1


class Arbiter(wiring.Component):
    """Gives the DRAM to the host (normal mode) or to the kernel (acceleration mode).

    In normal mode requests of the kernel wait. In acceleration mode host requests go to the
    kernel's registers. The arbiter's own registers answer in both. A switch stops new requests of
    the side that loses the DRAM, waits for what it has in flight and for the DRAM controller to be
    idle, and then takes effect; meanwhile host requests other than to the arbiter's registers are
    refused: a write is dropped, a read comes back late, both are counted.

    Parameters
    ----------
    capacity_bytes: bytes of the channel's address range, the register windows at its top included.
    id_width: width of AXI IDs on the memory side and of the kernel.
    read_latency: fixed latency of host reads, in fabric cycles.
    lanes, block_bytes: what the kernel was built with, for the configuration register.

    Members
    -------
    link: the host.
    kernel: the kernel's memory port.
    kernel_csr: the kernel's registers.
    memory: the DRAM controller.
    idle: no request of the host is queued or in flight, and ``memory_idle``.
    memory_idle: the DRAM controller holds no request.
    read_done: a read of the host has its data, or its refusal; for those who want to know how long
        it took, in time or not.
    memory_prompt: the DRAM controller must not postpone refreshes, because a batch of them would
        hold up the host for longer than the request queue lasts.
    kernel_busy: for the status register.
    refreshes, activates, precharges, longest_refresh_gap: the DRAM controller's counters, for the
        registers.
    run: the account of the kernel's last run, for the registers.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int,
        id_width: int = 1,
        read_latency: int = 48,
        lanes: int = 16,
        block_bytes: int = 16384,
    ) -> None:
        if capacity_bytes < 4 * WINDOW_BYTES or capacity_bytes & (capacity_bytes - 1):
            raise ValueError(
                f"capacity_bytes must be a power of two of at least {4 * WINDOW_BYTES}, got "
                f"{capacity_bytes!r}"
            )
        self._capacity_bytes = capacity_bytes
        self._address_width = capacity_bytes.bit_length() - 1
        self._id_width = id_width
        self._read_latency = read_latency
        self._lanes = lanes
        self._block_bytes = block_bytes
        self._port = HostPort(address_width=self._address_width, read_latency=read_latency)
        self._registers = arbiter_map()
        axi = AXI4Signature(addr_width=self._address_width, data_width=LINE_BITS, id_width=id_width)
        super().__init__(
            {
                "link": In(HostLinkSignature(address_width=self._address_width)),
                "kernel": In(axi),
                "kernel_csr": Out(AXI4LiteSignature(addr_width=12, data_width=64)),
                "memory": Out(axi),
                "idle": Out(1),
                "read_done": Out(1),
                "memory_idle": In(1),
                "memory_prompt": Out(1),
                "kernel_busy": In(1),
                "refreshes": In(COUNTER_BITS),
                "activates": In(COUNTER_BITS),
                "precharges": In(COUNTER_BITS),
                "longest_refresh_gap": In(COUNTER_BITS),
                "run": In(RunCountsSignature()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.port = port = self._port
        m.submodules.csr = csr = CsrBank(self._registers, addr_width=WINDOW_BYTES.bit_length() - 1)
        m.submodules.dram = dram = DramBridge(
            address_width=self._address_width, id_width=self._id_width
        )
        m.submodules.kernel_registers = kernel_registers = RegisterBridge(
            address_width=self._address_width
        )
        wiring.connect(m, wiring.flipped(self.link), port.link)
        wiring.connect(m, kernel_registers.axi, wiring.flipped(self.kernel_csr))

        mode = Signal(Mode)
        requested = Mode(csr.mode_mode)
        draining = Signal()
        m.d.comb += draining.eq(requested != mode)

        # Dispatch of the request at the head of the queue.
        request = port.o.payload
        place_bits = (WINDOW_BYTES // LINE_BYTES).bit_length() - 1
        page = request.line[place_bits:]
        refused = Signal()
        arbiter_read = Signal()
        m.d.comb += [
            dram.i.payload.eq(request),
            kernel_registers.i.payload.eq(request),
            csr.address.eq(request.line[:place_bits] << LINE_BYTE_BITS),
            csr.write_data.eq(request.data[:64]),
        ]
        with m.If(page.all()):
            m.d.comb += [
                csr.write.eq(port.o.valid & request.write & csr.hit),
                arbiter_read.eq(port.o.valid & ~request.write & csr.hit),
                refused.eq(port.o.valid & ~csr.hit),
                port.o.ready.eq(1),
            ]
        with m.Elif(draining):
            m.d.comb += [refused.eq(port.o.valid), port.o.ready.eq(1)]
        with m.Elif(mode == Mode.NORMAL):
            with m.If(page[1:].all()):
                m.d.comb += [refused.eq(port.o.valid), port.o.ready.eq(1)]
            with m.Else():
                m.d.comb += [dram.i.valid.eq(port.o.valid), port.o.ready.eq(dram.i.ready)]
        with m.Else():
            with m.If(page[1:].all()):
                m.d.comb += [
                    kernel_registers.i.valid.eq(port.o.valid),
                    port.o.ready.eq(kernel_registers.i.ready),
                ]
            with m.Else():
                self._host_memory_request(m, port, dram, refused)
        m.d.comb += self.read_done.eq(port.i_valid)

        # Results of reads: what is decided here comes first, the bridges wait a cycle.
        with m.If(arbiter_read | (refused & ~request.write)):
            m.d.comb += [
                port.i_valid.eq(1),
                port.i.tag.eq(request.tag),
                port.i.ok.eq(arbiter_read),
                port.i.data.eq(csr.read_data),
            ]
        with m.Elif(kernel_registers.o.valid):
            m.d.comb += [
                port.i_valid.eq(1),
                port.i.eq(kernel_registers.o.payload),
                kernel_registers.o.ready.eq(1),
            ]
        with m.Else():
            m.d.comb += [
                port.i_valid.eq(dram.o.valid),
                port.i.eq(dram.o.payload),
                dram.o.ready.eq(1),
            ]

        host_idle = Signal()
        m.d.comb += [
            host_idle.eq(dram.idle & kernel_registers.idle),
            self.idle.eq(port.empty & host_idle & self.memory_idle),
        ]
        kernel_in_flight = self._connect_memory(m, dram.axi, mode, draining)
        with m.If(draining & self.memory_idle & host_idle & ~kernel_in_flight):
            m.d.sync += mode.eq(requested)

        self._connect_registers(m, csr, mode, draining)
        for register, event in {
            "late_reads": port.late,
            "refused": refused + kernel_registers.error,
            "overflows": port.overflow,
            "host_reads": dram.i.valid & dram.i.ready & ~request.write,
            "host_writes": dram.i.valid & dram.i.ready & request.write,
        }.items():
            counter = Signal(COUNTER_BITS, name=register)
            m.d.sync += counter.eq(counter + event)
            m.d.comb += getattr(csr, f"{register}_count").eq(counter)
        return m

    def _host_memory_request(self, m: Module, port: Any, dram: Any, refused: Signal) -> None:
        """What becomes of the host's request to DRAM in acceleration mode."""
        m.d.comb += [refused.eq(port.o.valid), port.o.ready.eq(1)]

    def _connect_memory(self, m: Module, host: Any, mode: Signal, draining: Signal) -> Signal:
        """Joins host and kernel to the memory; returns whether the kernel has bursts in flight."""
        kernel = self.kernel
        kernel_owns = Signal()
        # Data passes only behind its address: what a drain left behind would otherwise be taken
        # for the data of the host's next write.
        data_bursts = Signal(8)
        write_data_owed = Signal()
        # An address once offered stays until it is taken, so a drain begins between two.
        read_open = Signal()
        write_open = Signal()
        wanted = kernel_owns & ~draining
        m.d.comb += [
            write_data_owed.eq(data_bursts != 0),
            kernel_owns.eq(mode == Mode.ACCELERATION),
            self.memory_prompt.eq(~wanted),
        ]
        admitted = kernel.signature.create(path=("admitted",))
        with m.If(~(read_open & kernel.arvalid) | admitted.arready):
            m.d.sync += read_open.eq(wanted)
        with m.If(~(write_open & kernel.awvalid) | admitted.awready):
            m.d.sync += write_open.eq(wanted)
        gates = {
            f"{channel}{end}": gate
            for channel, gate in (("aw", write_open), ("ar", read_open), ("w", write_data_owed))
            for end in ("valid", "ready")
        }
        for name, member in kernel.signature.members.items():
            from_kernel = member.flow is wiring.In
            source, target = (kernel, admitted) if from_kernel else (admitted, kernel)
            value = getattr(source, name)
            m.d.comb += getattr(target, name).eq(value & gates[name] if name in gates else value)
        self._join(m, host, admitted, kernel_owns)

        reads = Signal(8)
        # Writes are answered when they leave the controller's queue, of up to 256 bursts.
        writes = Signal(10)
        m.d.sync += [
            reads.eq(
                reads
                + (kernel.arvalid & kernel.arready)
                - (kernel.rvalid & kernel.rready & kernel.rlast)
            ),
            data_bursts.eq(
                data_bursts
                + (kernel.awvalid & kernel.awready)
                - (kernel.wvalid & kernel.wready & kernel.wlast)
            ),
            writes.eq(writes + (kernel.awvalid & kernel.awready) - (kernel.bvalid & kernel.bready)),
        ]
        in_flight = Signal()
        m.d.comb += in_flight.eq((reads != 0) | (writes != 0) | read_open | write_open)
        return in_flight

    def _join(self, m: Module, host: Any, kernel: Any, kernel_owns: Signal) -> None:
        """Connects the one that owns the memory to it."""
        memory = self.memory
        for name, member in memory.signature.members.items():
            if member.flow is wiring.Out:
                m.d.comb += getattr(memory, name).eq(
                    Mux(kernel_owns, getattr(kernel, name), getattr(host, name))
                )
                continue
            handshake = name.endswith(("valid", "ready"))
            for port, owns in ((kernel, kernel_owns), (host, ~kernel_owns)):
                value = getattr(memory, name)
                m.d.comb += getattr(port, name).eq(value & owns if handshake else value)

    def _connect_registers(self, m: Module, csr: CsrBank, mode: Signal, draining: Signal) -> None:
        for member, value in {
            "status_mode": mode,
            "status_draining": draining,
            "status_kernel_busy": self.kernel_busy,
            "capacity_capacity_bytes": self._capacity_bytes,
            "config_lanes": self._lanes,
            "config_block_bytes": self._block_bytes,
            "config_read_latency_fabric_cycles": self._read_latency,
            "refreshes_count": self.refreshes,
            "activates_count": self.activates,
            "precharges_count": self.precharges,
            "longest_refresh_gap_tck_count": self.longest_refresh_gap * SLOTS,
            **{f"{name}_count": getattr(self.run, name) for name in self.run.signature.members},
        }.items():
            m.d.comb += getattr(csr, member).eq(value)
