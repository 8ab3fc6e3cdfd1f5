"""Arbiter of a channel: it assigns the DRAM and dispatches host requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.host_axi import HostAxiPort
from hw.axdimm.host_bridge import DramBridge, RegisterBridge
from hw.axdimm.host_port import HostPort, HostResult, Target
from hw.axdimm.memory import MemorySignature
from hw.axdimm.memory_join import KernelGate, MemoryJoin
from hw.axdimm.registers import arbiter_map
from hw.axdimm.run_account import RunCountsSignature
from hw.axi.bus import AXI4LiteSignature
from hw.csr.bank import CSR_DATA_WIDTH, CsrBank
from hw.dram.interface import SLOT_BITS
from hw.kernel.registers import WINDOW_ADDR_WIDTH, WINDOW_BYTES
from hw.logic.line import LINE_BYTE_BITS

__all__ = ["Arbiter", "Mode"]


class Mode(enum.Enum, shape=1):
    """The exclusive modes of paper section 3.2."""

    NORMAL = 0
    ACCELERATION = 1


class Arbiter(wiring.Component):
    """Gives the DRAM to the host (normal mode) or to the kernel (acceleration mode).

    In normal mode requests of the kernel wait. In acceleration mode host requests to the kernel's
    registers are served, and those to the DRAM are refused unless ``join`` admits them. The
    arbiter's own registers answer in both modes.

    A mode switch stops new requests of the side that loses the DRAM. It takes effect when that
    side has nothing in flight and the memory is idle. Until then host requests are refused and
    counted, except those to the arbiter's registers. A refused write on the link is dropped and a
    refused read comes back late; on AXI both get an error response.

    Parameters
    ----------
    join
        Connection of host and kernel to the memory. Its address width is that of the channel,
        including the register windows at the top.
    port
        Port of the host; its addresses are as wide as the join's.
    lanes, block_bytes, rules, narrow
        Parameters of the kernel, shown in registers; rules by their identifiers.

    Members
    -------
    link or s_axi : as that of ``port``
        The host.
    kernel : In(:class:`~hw.axi.bus.AXI4Signature`)
        The kernel's memory port.
    kernel_csr : Out(:class:`~hw.axi.bus.AXI4LiteSignature`)
        The kernel's registers.
    memory : Out(:class:`~hw.axdimm.memory.MemorySignature`)
        The memory. Refreshes are prompt while the host is served, because a batch of them would
        hold it up for longer than the request queue lasts.
    idle : Out(1)
        No request of the host is queued or in flight, and the memory is idle.
    read_done : Out(1)
        A read of the host has its data, or its refusal; for those who want to know how long it
        took, in time or not.
    kernel_busy : In(1)
        The kernel is at work; for the status register.
    run : In(:class:`~hw.axdimm.run_account.RunCountsSignature`)
        The account of the kernel's last run, for the registers.

    Examples
    --------
    >>> from hw.axdimm.host_port import HostPort
    >>> from hw.axdimm.memory_join import ExclusiveJoin
    >>> join, port = ExclusiveJoin(addr_width=30), HostPort(address_width=30)
    >>> arbiter = Arbiter(join=join, port=port, lanes=16, block_bytes=16384, rules=(1,))
    >>> list(arbiter.signature.members)
    ['link', 'kernel', 'kernel_csr', 'memory', 'idle', 'read_done', 'kernel_busy', 'run']
    """

    def __init__(
        self,
        *,
        join: MemoryJoin,
        port: HostPort | HostAxiPort,
        lanes: int,
        block_bytes: int,
        rules: Sequence[int],
        narrow: bool = False,
    ) -> None:
        self._address_width = address_width = join.axi.addr_width
        if 1 << address_width < 4 * WINDOW_BYTES:
            raise ValueError(
                f"the join's addr_width must be at least {WINDOW_ADDR_WIDTH + 2}, "
                f"got {address_width!r}"
            )
        self._lanes = lanes
        self._block_bytes = block_bytes
        self._rules = rules
        self._narrow = narrow
        self._join = join
        self._port = port
        self.side = port.side
        """Name of the member that connects to the host."""
        super().__init__(
            {
                port.side: port.signature.members[port.side],
                "kernel": In(join.axi),
                "kernel_csr": Out(
                    AXI4LiteSignature(addr_width=WINDOW_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
                ),
                "memory": Out(MemorySignature(addr_width=address_width)),
                "idle": Out(1),
                "read_done": Out(1),
                "kernel_busy": In(1),
                "run": In(RunCountsSignature()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        memory = self.memory
        m.submodules.port = port = self._port
        m.submodules.csr = csr = CsrBank(arbiter_map(), addr_width=WINDOW_ADDR_WIDTH, strobes=True)
        m.submodules.dram = dram = DramBridge(
            address_width=self._address_width, id_width=1, ordered=not self._port.in_order
        )
        m.submodules.kernel_registers = kernel_registers = RegisterBridge(
            address_width=self._address_width
        )
        m.submodules.gate = gate = KernelGate(self._join.axi)
        m.submodules.join = join = self._join
        host = getattr(self, port.side)
        wiring.connect(m, wiring.flipped(host), getattr(port, port.side))
        wiring.connect(m, kernel_registers.axi, wiring.flipped(self.kernel_csr))
        wiring.connect(m, wiring.flipped(self.kernel), gate.kernel)
        wiring.connect(m, gate.memory, join.kernel)
        wiring.connect(m, dram.axi, join.host)
        wiring.connect(m, join.memory, wiring.flipped(memory.axi))

        # Mode switch.
        mode = Signal(Mode)
        requested = Mode(csr.mode_mode)
        draining = Signal()
        host_idle = Signal()
        answered = Signal()
        m.d.comb += [
            draining.eq(requested != mode),
            join.kernel_owns.eq(mode == Mode.ACCELERATION),
            gate.open.eq(join.kernel_owns & ~draining),
            memory.prompt.eq(join.host_admitted | draining),
            host_idle.eq(dram.idle & kernel_registers.idle),
            self.idle.eq(port.empty & host_idle & ~answered & memory.idle),
        ]
        # What was noticed since the last switch is shown from this one on.
        events = {
            "tags": port.tags_upset,
            "requests": port.request_upset,
            "reads": dram.upset,
        }
        noticed = Signal(len(events))
        upsets = {name: Signal(name=f"upset_{name}") for name in events}
        m.d.sync += noticed.eq(noticed | Cat(events.values()))
        with m.If(draining & memory.idle & host_idle & gate.idle):
            m.d.sync += [
                mode.eq(requested),
                Cat(upsets.values()).eq(noticed | Cat(events.values())),
                noticed.eq(0),
            ]

        # Dispatch of the request at the head of the queue.
        request = port.o.payload
        refused = Signal()
        arbiter_read = Signal()
        # If results must come in order, a target waits until the other targets are idle.
        in_order = port.in_order
        settled = host_idle if in_order else Const(1)
        m.d.comb += [
            dram.i.payload.eq(request),
            kernel_registers.i.payload.eq(request),
            csr.bus.address.eq(request.line << LINE_BYTE_BITS),
            csr.bus.write_data.eq(request.data),
            csr.bus.strobes.eq(request.strobes),
        ]

        def take(target: Any, other: Any) -> None:
            turn = other.idle if in_order else Const(1)
            m.d.comb += [
                target.i.valid.eq(port.o.valid & turn),
                port.o.ready.eq(target.i.ready & turn),
            ]

        def refuse() -> None:
            m.d.comb += [refused.eq(port.o.valid & settled), port.o.ready.eq(settled)]

        with m.If(request.bad):
            refuse()
        with m.Elif(request.target == Target.ARBITER):
            hit = port.o.valid & settled & csr.bus.hit
            m.d.comb += [
                csr.bus.write.eq(hit & request.write),
                arbiter_read.eq(hit & ~request.write),
                refused.eq(port.o.valid & settled & ~csr.bus.hit),
                port.o.ready.eq(settled),
            ]
        with m.Elif(draining):
            refuse()
        with m.Elif(request.target == Target.KERNEL):
            with m.If(join.kernel_owns):
                take(kernel_registers, dram)
            with m.Else():
                refuse()
        with m.Elif(join.host_admitted):
            take(dram, kernel_registers)
        with m.Else():
            refuse()
        if in_order:
            m.d.comb += [
                port.written.eq(
                    csr.bus.write
                    | (refused & request.write)
                    | kernel_registers.written
                    | dram.written
                ),
                port.write_ok.eq(
                    csr.bus.write
                    | (kernel_registers.written & ~kernel_registers.error)
                    | (dram.written & dram.write_ok)
                ),
            ]

        # Read results: one that was decided here in the cycle before comes first; bridges wait.
        answer = Signal(HostResult(), reset_less=True)
        m.d.sync += [
            answered.eq(arbiter_read | (refused & ~request.write)),
            answer.tag.eq(request.tag),
            answer.ok.eq(arbiter_read),
            answer.data.eq(Mux(arbiter_read, csr.bus.read_data, 0)),
        ]
        m.d.comb += self.read_done.eq(port.i_valid)
        with m.If(answered):
            m.d.comb += [port.i_valid.eq(1), port.i.eq(answer)]
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

        self._connect_registers(m, csr, mode, draining, upsets)
        self._count_events(
            m,
            csr,
            {
                "late_reads": [port.late],
                "refused": [refused, kernel_registers.error],
                "overflows": [port.overflow],
                "host_reads": [dram.i.valid & dram.i.ready & ~request.write],
                "host_writes": [dram.i.valid & dram.i.ready & request.write],
            },
        )
        return m

    def _connect_registers(
        self, m: Any, csr: Any, mode: Signal, draining: Signal, upsets: dict[str, Signal]
    ) -> None:
        """Connect the registers that show values from outside the arbiter."""
        memory = self.memory
        for member, value in {
            "status_mode": mode,
            "status_draining": draining,
            "status_kernel_busy": self.kernel_busy,
            **{f"status_upset_{name}": upset for name, upset in upsets.items()},
            "capacity_capacity_bytes": 1 << self._address_width,
            "config_lanes": self._lanes,
            "config_block_bytes": self._block_bytes,
            "config_read_latency_fabric_cycles": self._port.read_latency,
            "config_rules": len(self._rules),
            "config_narrow": int(self._narrow),
            **{
                f"rule_{number}_identifier": identifier
                for number, identifier in enumerate(self._rules)
            },
            "refreshes_count": memory.refreshes,
            "activates_count": memory.activates,
            "precharges_count": memory.precharges,
            "longest_refresh_gap_tck_count": memory.longest_refresh_gap.shift_left(SLOT_BITS),
            **{f"{name}_count": getattr(self.run, name) for name in self.run.signature.members},
        }.items():
            register = getattr(csr, member)
            assert len(Value.cast(value)) <= len(register), f"{member} is too narrow"
            m.d.comb += register.eq(value)

    @staticmethod
    def _count_events(m: Any, csr: Any, events: dict[str, list[Any]]) -> None:
        """Count events, of one or two sources each, in the registers of the same name."""
        for register, sources in events.items():
            count = getattr(csr, f"{register}_count")
            counter = Signal.like(count, name=register)
            # No adder waits for the events, which come late.
            if len(sources) > 1:
                with m.If(Cat(sources).all()):
                    m.d.sync += counter.eq(counter + 2)
            with m.If(Cat(sources).xor()):
                m.d.sync += counter.eq(counter + 1)
            m.d.comb += count.eq(counter)
