"""Connection of a channel's host and kernel to its memory."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.memory import MOST_ADMITTED, MOST_UNANSWERED, MemorySignature
from hw.axi.bus import AXI4Signature
from hw.logic.counter import under_way

__all__ = ["ExclusiveJoin", "KernelGate", "MemoryJoin"]


class MemoryJoin(wiring.Component):
    """Joins the host's and the kernel's AXI port to that of the memory; see its kinds.

    The arbiter switches ``kernel_owns`` only while neither side has anything in flight. It keeps
    the kernel from offering bursts while it does not own the memory.

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
    """Connects the memory to its owner alone (paper section 3.2). See :class:`MemoryJoin`.

    Examples
    --------
    >>> join = ExclusiveJoin(addr_width=30)
    >>> list(join.signature.members)
    ['host', 'kernel', 'memory', 'kernel_owns', 'host_admitted']
    """

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

    Data of a write passes as soon as its address is offered: a memory may want to see the data
    before it takes the address (IHI 0022E, A3.3.1). The gate admits at most as many bursts as its
    counters hold, even if the memory would take more.

    Parameters
    ----------
    axi
        Signature of both ports.

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
        reads, no_reads = under_way(
            m,
            "reads",
            MOST_ADMITTED,
            begun=kernel.arvalid & kernel.arready,
            ended=kernel.rvalid & kernel.rready & kernel.rlast,
        )
        write_waits = Signal()
        write_offered = memory.awvalid & ~write_waits
        # Data passes only after its address. Otherwise the memory would take data left over from
        # before a switch for the data of the host's next write.
        without_data, none_owed = under_way(
            m,
            "without_data",
            MOST_ADMITTED,
            begun=write_offered,
            ended=kernel.wvalid & kernel.wready & kernel.wlast,
        )
        unanswered, all_answered = under_way(
            m,
            "unanswered",
            MOST_UNANSWERED,
            begun=memory.awvalid & memory.awready,
            ended=kernel.bvalid & kernel.bready,
        )
        # An address once offered stays until it is taken, so the gate closes between two. The
        # counters do not yet include the address that passes in this cycle.
        read_open = Signal()
        write_open = Signal()
        with m.If(~(read_open & kernel.arvalid) | memory.arready):
            m.d.sync += read_open.eq(self.open & (reads < MOST_ADMITTED - 1))
        with m.If(~(write_open & kernel.awvalid) | memory.awready):
            m.d.sync += write_open.eq(
                self.open & (without_data < MOST_ADMITTED - 1) & (unanswered < MOST_UNANSWERED - 1)
            )
        gates = {
            f"{channel}{end}": gate
            for channel, gate in (("aw", write_open), ("ar", read_open), ("w", ~none_owed))
            for end in ("valid", "ready")
        }
        for name, member in self._axi.members.items():
            source, target = (kernel, memory) if member.flow is wiring.Out else (memory, kernel)
            value = getattr(source, name)
            m.d.comb += getattr(target, name).eq(value & gates[name] if name in gates else value)

        m.d.sync += write_waits.eq(memory.awvalid & ~memory.awready)
        m.d.comb += self.idle.eq(no_reads & all_answered & ~read_open & ~write_open)
        return m
