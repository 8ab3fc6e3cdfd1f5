"""How the host and the kernel of a channel come to its memory."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.memory import MOST_ADMITTED, MOST_UNANSWERED, MemorySignature
from hw.axi.bus import AXI4Signature

__all__ = ["ExclusiveJoin", "KernelGate", "MemoryJoin"]


class MemoryJoin(wiring.Component):
    """Joins the host's and the kernel's AXI port to that of the memory; see its kinds.

    The arbiter switches ``kernel_owns`` while nothing of either side is under way, and keeps the
    kernel from offering bursts where it does not own the memory.

    Parameters
    ----------
    addr_width
        Width of the memory's byte addresses.

    Members
    -------
    host, kernel : In(:class:`~hw.axi.bus.AXI4Signature`)
        Those who want to use the memory.
    memory : Out(:class:`~hw.axi.bus.AXI4Signature`)
        The memory's ``axi``, see :class:`~hw.axdimm.memory.MemorySignature`.
    kernel_owns : In(1)
        Acceleration mode is in force.
    host_admitted : Out(1)
        The host may send requests; they are refused otherwise. Combinational from ``kernel_owns``.
    """

    def __init__(self, *, addr_width: int) -> None:
        self.axi = axi = MemorySignature(addr_width=addr_width).axi
        super().__init__(
            {
                "host": In(axi),
                "kernel": In(axi),
                "memory": Out(axi),
                "kernel_owns": In(1),
                "host_admitted": Out(1),
            }
        )

    @abstractmethod
    def elaborate(self, platform: Any) -> Module: ...


class ExclusiveJoin(MemoryJoin):
    """Connects the memory to its owner alone (paper section 3.2). See :class:`MemoryJoin`."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        host, kernel, memory = self.host, self.kernel, self.memory
        m.d.comb += self.host_admitted.eq(~self.kernel_owns)
        for name, member in self.axi.members.items():
            ours = getattr(memory, name)
            if member.flow is wiring.Out:
                chosen = Mux(self.kernel_owns, getattr(kernel, name), getattr(host, name))
                m.d.comb += ours.eq(chosen)
                continue
            handshake = name.endswith(("valid", "ready"))
            for port, owns in ((kernel, self.kernel_owns), (host, ~self.kernel_owns)):
                m.d.comb += getattr(port, name).eq(ours & owns if handshake else ours)
        return m


class KernelGate(wiring.Component):
    """Lets the kernel begin bursts only while it may, and knows when the last has ended.

    Data of a write is passed on as soon as its address is offered: a memory may want to see it
    before it takes the address (IHI 0022E, A3.3.1). No more bursts are under way than the counters
    hold, however many the memory would take.

    Parameters
    ----------
    axi
        Of both ports.

    Members
    -------
    kernel : In(axi)
        The kernel.
    memory : Out(axi)
        Towards the memory.
    open : In(1)
        New bursts may begin; an address that is on offer when it falls still passes.
    idle : Out(1)
        No burst is under way, and none can begin.
    """

    def __init__(self, axi: AXI4Signature) -> None:
        self._axi = axi
        super().__init__({"kernel": In(axi), "memory": Out(axi), "open": In(1), "idle": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        kernel, memory = self.kernel, self.memory
        reads = Signal(range(MOST_ADMITTED + 1))
        # Data passes only behind its address: what a drain left behind would otherwise be taken
        # for the data of the host's next write.
        without_data = Signal(range(MOST_ADMITTED + 1))
        unanswered = Signal(range(MOST_UNANSWERED + 1))
        write_data_owed = Signal()
        # An address once offered stays until it is taken, so a drain begins between two. The
        # counters do not yet know of the one that passes now.
        read_open = Signal()
        write_open = Signal()
        m.d.comb += write_data_owed.eq(without_data != 0)
        with m.If(~(read_open & kernel.arvalid) | memory.arready):
            m.d.sync += read_open.eq(self.open & (reads < MOST_ADMITTED - 1))
        with m.If(~(write_open & kernel.awvalid) | memory.awready):
            m.d.sync += write_open.eq(
                self.open & (without_data < MOST_ADMITTED - 1) & (unanswered < MOST_UNANSWERED - 1)
            )
        gates = {
            f"{channel}{end}": gate
            for channel, gate in (("aw", write_open), ("ar", read_open), ("w", write_data_owed))
            for end in ("valid", "ready")
        }
        for name, member in self._axi.members.items():
            source, target = (kernel, memory) if member.flow is wiring.Out else (memory, kernel)
            value = getattr(source, name)
            m.d.comb += getattr(target, name).eq(value & gates[name] if name in gates else value)

        write_waits = Signal()
        write_offered = memory.awvalid & ~write_waits
        write_taken = memory.awvalid & memory.awready
        m.d.sync += [
            write_waits.eq(memory.awvalid & ~memory.awready),
            reads.eq(
                reads
                + (kernel.arvalid & kernel.arready)
                - (kernel.rvalid & kernel.rready & kernel.rlast)
            ),
            without_data.eq(
                without_data + write_offered - (kernel.wvalid & kernel.wready & kernel.wlast)
            ),
            unanswered.eq(unanswered + write_taken - (kernel.bvalid & kernel.bready)),
        ]
        m.d.comb += self.idle.eq((reads == 0) & (unanswered == 0) & ~read_open & ~write_open)
        return m
